"""The job `report`: profiles of an archive, as a page."""
