"""What every package here may use: errors, folders, credentials, the command line."""
