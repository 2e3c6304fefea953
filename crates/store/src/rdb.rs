//! Redis' RDB files, for strings.
