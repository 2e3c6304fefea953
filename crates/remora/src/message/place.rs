//! Where a daemon listens.

use std::env;
use std::ffi::OsStr;
use std::path::PathBuf;

use crate::runtime;

/// The environment variable that names a daemon's socket, or says `off`.
pub const SOCKET_VARIABLE: &str = "REMORA_NIC";
/// The socket of the machine's daemon.
const SYSTEM: &str = "/run/remora/nic.sock";
const FILE: &str = "nic.sock";

/// Where to look for a daemon.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DaemonPlace {
    /// Nowhere: the program has a card of its own.
    Off,
    /// At this socket, and it is an error if no daemon listens there.
    Named(PathBuf),
    /// At the first of these where one listens, if any does.
    Usual(Vec<PathBuf>),
}

/// Where this process looks for a daemon: where [`SOCKET_VARIABLE`] says, else at the user's own
/// place, else at the machine's.
pub fn place() -> DaemonPlace {
    match env::var_os(SOCKET_VARIABLE).filter(|value| !value.is_empty()) {
        Some(value) if value == OsStr::new("off") => DaemonPlace::Off,
        Some(path) => DaemonPlace::Named(path.into()),
        None => DaemonPlace::Usual(user_socket().into_iter().chain([SYSTEM.into()]).collect()),
    }
}

/// The socket of this user's own daemon, in a folder that no other user can reach; `None` if there
/// can be no such folder.
pub(crate) fn user_socket() -> Option<PathBuf> {
    runtime::folder().ok().map(|folder| folder.join(FILE))
}
