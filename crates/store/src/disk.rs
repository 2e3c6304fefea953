//! Files, as the log and snapshots reach them.
