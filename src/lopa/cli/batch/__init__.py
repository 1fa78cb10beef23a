"""Files of prompts: read line by line, answered many at a time, resumed."""
