//! Why a queue pair does not join a multicast group of the live device.

use std::io;
use std::net::IpAddr;

use remora_nic::nic::McastError;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

/// Why a queue pair was not attached to a group.
#[derive(Debug, Error, Serialize, Deserialize)]
pub enum JoinError {
    /// The card refuses.
    #[error(transparent)]
    Card(#[from] McastError),
    /// The system refuses.
    #[error("cannot join multicast group {group} on the interface of {card}: {source}")]
    System {
        /// The group.
        group: IpAddr,
        /// The card's address.
        card: IpAddr,
        /// The system's reason.
        #[serde(with = "as_number")]
        source: io::Error,
    },
}

/// Serializes the system's reason as its number.
mod as_number {
    use super::*;

    pub(super) fn serialize<S: Serializer>(error: &io::Error, to: S) -> Result<S::Ok, S::Error> {
        error.raw_os_error().unwrap_or(libc::EIO).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<io::Error, D::Error> {
        i32::deserialize(from).map(io::Error::from_raw_os_error)
    }
}
