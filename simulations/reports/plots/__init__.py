"""Pictures of results, one module for each subject, and `drawing` with what they share."""
