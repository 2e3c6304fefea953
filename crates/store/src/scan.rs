//! A walk over a tablespace.
