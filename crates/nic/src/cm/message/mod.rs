//! The messages of communication management: InfiniBand volume 1, chapter 12.
//!
//! - `request`: REQ. `connect`: MRA, REP, RTU. `reject`: REJ. `release`: DREQ, DREP.
//! - `sidr`: SIDR_REQ, SIDR_REP. `bits`: fields of a message.
//!
//! Each message is a struct with its meaningful fields, `parse` and `emit`. Any 232 bytes are a
//! message of any kind, so parsing does not fail; whether a value makes sense is checked by the
//! handler of the message. Reserved fields, and those of end-to-end contexts and reliable
//! datagrams, which RoCE does not have, are ignored on arrival and sent as zero. Private data is as
//! long as its field: its real length is not on the wire.

pub(crate) mod bits;
mod connect;
mod reject;
mod release;
mod request;
mod sidr;

pub use connect::{Mra, Rep, Rtu};
pub use reject::{Rej, RejectReason};
pub use release::{Drep, Dreq};
pub use request::{Primary, Req, TransportService};
pub use sidr::{SidrRep, SidrReq, SidrStatus};

use super::mad::{self, DATA_LEN, Data, Header, MAD_LEN, Malformed};

/// Bytes of additional information in a REJ or SIDR_REP.
pub const INFO_LEN: usize = 72;

/// Private data is too long for its message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[error("private data of {len} bytes, at most {max} fit")]
pub struct TooLong {
    /// Bytes given.
    pub len: usize,
    /// Bytes that fit.
    pub max: usize,
}

/// `data` at the start of a field of private data, the rest zero.
///
/// # Errors
/// [`TooLong`] if the data does not fit.
pub fn private_data<const N: usize>(data: &[u8]) -> Result<[u8; N], TooLong> {
    let mut field = [0; N];
    let target = field.get_mut(..data.len()).ok_or(TooLong { len: data.len(), max: N })?;
    target.copy_from_slice(data);
    Ok(field)
}

/// Which message an MRA or a REJ answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answered {
    /// A connection request.
    Req,
    /// A reply to a connection request.
    Rep,
    /// Neither: for a REJ, no message at all (a time-out).
    Other,
}

impl Answered {
    fn from_code(code: u8) -> Answered {
        match code {
            0 => Answered::Req,
            1 => Answered::Rep,
            _ => Answered::Other,
        }
    }

    fn code(self) -> u8 {
        match self {
            Answered::Req => 0,
            Answered::Rep => 1,
            Answered::Other => 2,
        }
    }
}

/// Declares the message enum, its attribute identifiers and its dispatch from one table.
macro_rules! messages {
    ($($(#[$doc:meta])* $name:ident = $id:literal,)*) => {
        /// The attribute identifier of a MAD: which message it carries.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        #[repr(u16)]
        pub enum Attribute { $($(#[$doc])* $name = $id,)* }

        /// A message of communication management.
        #[derive(Clone, PartialEq, Eq, Debug)]
        pub enum Message { $($(#[$doc])* $name($name),)* }

        impl Message {
            /// The message that a MAD's data holds, by its attribute identifier.
            ///
            /// # Errors
            /// [`Malformed::Attribute`] if no message has this identifier.
            pub fn from_data(attribute_id: u16, data: &Data) -> Result<Message, Malformed> {
                match attribute_id {
                    $($id => Ok(Message::$name($name::parse(data))),)*
                    other => Err(Malformed::Attribute(other)),
                }
            }

            /// The attribute identifier of this message.
            pub fn attribute(&self) -> Attribute {
                match self { $(Message::$name(_) => Attribute::$name,)* }
            }

            /// The data of a MAD that carries this message.
            pub fn to_data(&self) -> Data {
                let mut data = [0; DATA_LEN];
                match self { $(Message::$name(message) => message.emit(&mut data),)* }
                data
            }
        }

        $(impl From<$name> for Message {
            fn from(message: $name) -> Message {
                Message::$name(message)
            }
        })*
    };
}

messages! {
    /// Connection request, from the active side.
    Req = 0x10,
    /// Message receipt acknowledgement: the sender needs more time to answer.
    Mra = 0x11,
    /// Rejection.
    Rej = 0x12,
    /// Reply to a connection request, from the passive side.
    Rep = 0x13,
    /// Ready to use: the active side's answer to a reply.
    Rtu = 0x14,
    /// Disconnection request.
    Dreq = 0x15,
    /// Reply to a disconnection request.
    Drep = 0x16,
    /// Service id resolution request: which queue pair speaks for a datagram service?
    SidrReq = 0x17,
    /// The answer to a service id resolution request.
    SidrRep = 0x18,
}

impl Message {
    /// The transaction identifier and the message of a received MAD.
    ///
    /// # Errors
    /// As [`mad::parse`] and [`Message::from_data`].
    pub fn from_mad(bytes: &[u8]) -> Result<(u64, Message), Malformed> {
        let (header, data) = mad::parse(bytes)?;
        Ok((header.transaction_id, Message::from_data(header.attribute_id, data)?))
    }

    /// The MAD that carries this message.
    pub fn to_mad(&self, transaction_id: u64) -> [u8; MAD_LEN] {
        let header = Header { transaction_id, attribute_id: self.attribute() as u16 };
        mad::emit(header, &self.to_data())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_data() -> impl Strategy<Value = Data> {
        proptest::collection::vec(any::<u8>(), DATA_LEN)
            .prop_map(|bytes| bytes.try_into().expect("232 bytes"))
    }

    proptest! {
        /// Random bytes take every value of every field, so a message that is parsed, built and
        /// parsed again must not change.
        #[test]
        fn every_message_survives_the_way_out_and_in(id in 0x10..=0x18_u16, data in any_data()) {
            let message = Message::from_data(id, &data).expect("a known attribute");
            prop_assert_eq!(message.attribute() as u16, id);
            prop_assert_eq!(Message::from_data(id, &message.to_data()), Ok(message.clone()));
            prop_assert_eq!(Message::from_mad(&message.to_mad(9)), Ok((9, message)));
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = Message::from_mad(&bytes);
        }

        #[test]
        fn no_data_behind_a_good_header_panics(id in any::<u16>(), data in any_data()) {
            let mad = mad::emit(Header { transaction_id: 0, attribute_id: id }, &data);
            prop_assert_eq!(Message::from_mad(&mad).is_ok(), (0x10..=0x18).contains(&id));
        }
    }

    #[test]
    fn private_data_is_padded_or_refused() {
        assert_eq!(private_data::<4>(&[1, 2]), Ok([1, 2, 0, 0]));
        assert_eq!(private_data::<4>(&[0; 5]), Err(TooLong { len: 5, max: 4 }));
    }
}
