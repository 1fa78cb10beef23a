"""Files of prompts: read line by line, answered several at a time, resumable."""
