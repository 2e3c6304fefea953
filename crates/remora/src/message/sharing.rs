//! What processes share by the daemon's leave: a session, and XRC domains that files name.

use remora_nic::Xrcd;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::SessionToken;

/// Names a session to be used beside its client, by a process of the same user: a forked child, or
/// one that was given a [`Letter`].
///
/// All clients of a session have the same objects and the same arena. The session ends with the
/// last of them. Events of the card go to its first client only.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Join {
    /// The number of the session.
    pub session: u32,
    /// What the session's client was told as [`Welcome::share`](super::Welcome::share).
    pub token: SessionToken,
}

/// What a file of memory says that stands for an open device: programs pass its descriptor to other
/// processes (the command descriptor of verbs).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Letter {
    /// A card in a process, by its GUID: no other process can use it.
    Card(u64),
    /// A session, and the card's GUID, by which a process knows whether its daemon is the one.
    Session(Join, u64),
}

/// How an XRC domain is opened by a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OpenXrcd {
    /// A domain is made if the file names none (`O_CREAT`).
    pub creates: bool,
    /// The file must name none yet (`O_EXCL`).
    pub exclusive: bool,
}

/// Why an XRC domain is not opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error, Serialize, Deserialize)]
pub enum XrcdError {
    /// The file names one, and was to name none.
    #[error("the file names an XRC domain already")]
    Exists,
    /// The file names none, and none was to be made.
    #[error("the file names no XRC domain")]
    Missing,
    /// There are as many domains as the card, or the session's quota, admits.
    #[error("there are as many XRC domains as may be")]
    Full,
    /// The system does not tell which file it is.
    #[error("the descriptor is not that of a file")]
    File,
    /// The card's process has ended.
    #[error("the card’s process has ended")]
    Gone,
}

/// What [`Answer::Xrcd`](super::Answer::Xrcd) carries.
pub(crate) type Opened = Result<Xrcd, XrcdError>;
