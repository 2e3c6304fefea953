//! The table as a file, written while it serves.
