//! Selection next to the data.
