//! REJ, and the reasons for it.

use core::fmt;

use super::bits::{be16, be32, bits, bytes, put, put_bits};
use super::{Answered, INFO_LEN};
use crate::cm::mad::Data;

/// Why a connection was refused: the reasons of chapter 12 (Communication Management).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RejectReason(pub u16);

/// Declares each reason once, for its constant and its text.
macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $text:literal;)*) => {
        impl RejectReason {
            $($(#[$doc])* pub const $name: RejectReason = RejectReason($code);)*

            /// The text of the reason, if it is one of the specification's.
            pub fn text(self) -> Option<&'static str> {
                match self.0 {
                    $($code => Some($text),)*
                    _ => None,
                }
            }
        }
    };
}

reasons! {
    /// The peer has no queue pair left.
    NO_QP = 1, "no queue pair available";
    /// The peer lacks resources of some kind.
    NO_RESOURCES = 3, "no resources available";
    /// The sender has waited too long for an answer.
    TIMEOUT = 4, "timeout";
    /// The request is not supported.
    UNSUPPORTED = 5, "unsupported request";
    /// A message names a connection that is not known.
    INVALID_COMM_ID = 6, "invalid communication id";
    /// The two communication ids do not belong together.
    INVALID_COMM_INSTANCE = 7, "invalid communication instance";
    /// The service has no listener.
    INVALID_SERVICE_ID = 8, "invalid service id";
    /// The kind of queue pair is not supported.
    INVALID_TRANSPORT_TYPE = 9, "invalid transport service type";
    /// The queue pair already has a connection here.
    STALE_CONNECTION = 10, "stale connection";
    /// The GID of the primary path is not one of the peer's.
    INVALID_GID = 12, "invalid primary GID";
    /// The path MTU is not supported.
    INVALID_MTU = 26, "invalid path MTU";
    /// Not enough responder resources.
    INSUFFICIENT_RESPONDER_RESOURCES = 27, "insufficient responder resources";
    /// The application refuses; its private data may say why.
    CONSUMER_DEFINED = 28, "rejected by the application";
    /// The retry count after "receiver not ready" is not supported.
    INVALID_RNR_RETRY = 29, "invalid RNR retry count";
    /// The communication id is in use for another connection.
    DUPLICATE_LOCAL_COMM_ID = 30, "duplicate local communication id";
    /// The class version is not supported.
    INVALID_CLASS_VERSION = 31, "invalid class version";
}

impl fmt::Display for RejectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.text() {
            Some(text) => write!(f, "{text} ({})", self.0),
            None => write!(f, "reason {}", self.0),
        }
    }
}

impl fmt::Debug for RejectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Rejection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rej {
    /// The sender's communication id; 0 if it has none.
    pub local_comm_id: u32,
    /// The receiver's communication id; 0 if the sender does not know it.
    pub remote_comm_id: u32,
    /// Which message is refused.
    pub rejected: Answered,
    /// 7 bits: how many bytes of `info` are used.
    pub info_len: u8,
    /// The reason.
    pub reason: RejectReason,
    /// More about the reason: a value that would be accepted, or the sender's card.
    pub info: [u8; INFO_LEN],
    /// Private data.
    pub private_data: [u8; Rej::PRIVATE_DATA],
}

impl Rej {
    /// Bytes of private data.
    pub const PRIVATE_DATA: usize = 148;

    pub(super) fn parse(data: &Data) -> Rej {
        Rej {
            local_comm_id: be32(data, 0),
            remote_comm_id: be32(data, 4),
            rejected: Answered::from_code(bits(data, 8, 0, 2)),
            info_len: bits(data, 9, 0, 7),
            reason: RejectReason(be16(data, 10)),
            info: bytes(data, 12),
            private_data: bytes(data, 84),
        }
    }

    pub(super) fn emit(&self, data: &mut Data) {
        put(data, 0, &self.local_comm_id.to_be_bytes());
        put(data, 4, &self.remote_comm_id.to_be_bytes());
        put_bits(data, 8, 0, 2, self.rejected.code());
        put_bits(data, 9, 0, 7, self.info_len);
        put(data, 10, &self.reason.0.to_be_bytes());
        put(data, 12, &self.info);
        put(data, 84, &self.private_data);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cm::mad::DATA_LEN;

    /// The bytes are written by hand from the layout of REJ in chapter 12.
    #[test]
    fn the_bytes_of_a_rejection() {
        let rej = Rej {
            local_comm_id: 1,
            remote_comm_id: 2,
            rejected: Answered::Other,
            info_len: 8,
            reason: RejectReason::TIMEOUT,
            info: [7; INFO_LEN],
            private_data: [9; Rej::PRIVATE_DATA],
        };
        let mut data = [0; DATA_LEN];
        rej.emit(&mut data);
        assert_eq!(data[..12], [0, 0, 0, 1, 0, 0, 0, 2, 0b1000_0000, 0b0001_0000, 0, 4]);
        assert_eq!(data[12..84], [7; INFO_LEN]);
        assert_eq!(data[84..], [9; Rej::PRIVATE_DATA]);
        assert_eq!(Rej::parse(&data), rej);
    }

    #[test]
    fn a_reason_can_be_read() {
        assert_eq!(RejectReason::STALE_CONNECTION.to_string(), "stale connection (10)");
        assert_eq!(RejectReason(99).to_string(), "reason 99");
    }
}
