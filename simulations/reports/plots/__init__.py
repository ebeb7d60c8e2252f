"""Pictures of what tables say; a module for each subject, and what all of them draw with."""
