"""Any of these files as lines of text, as kafka-dump-log prints them."""
