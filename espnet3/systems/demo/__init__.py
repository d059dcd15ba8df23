"""The demo stage: a page where a person gives a recording and reads the text."""
