//! Suites of others.
