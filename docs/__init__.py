"""Pictures of the pages and the worked example of COMPACTION.md, with the scripts that make them."""
