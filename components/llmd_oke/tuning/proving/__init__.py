"""The tuner held against what others have published, and against its own limits of time and memory."""
