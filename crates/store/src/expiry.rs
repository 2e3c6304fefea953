//! Items whose time has come.
