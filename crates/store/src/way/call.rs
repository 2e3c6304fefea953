//! The bytes of an operation that a client asks for by an RPC, and of its answer.
//!
//! Each operation has an op-code of its own, [`Operation::opcode`]. The bytes of a call are a head
//! of [`HEAD_LEN`] bytes, little-endian, and then key, condition and value:
//!
//! ```text
//! byte  0  tablespace     u16
//!       2  condition      u8    0 none, 1 absent, 2 present, 3 version, 4 value, 5 predicate
//!       3  placement      u8    0 set, 1 append, 2 prepend; + 64: the client was sent here for a
//!                                key on its way; + 128: a request's number follows the value
//!       4  key_len        u32
//!       8  condition_len  u32   bytes of the value or predicate that the condition compares with
//!      12  value_len      u32
//!      16  number         u64   of condition 3: the version
//!      24  argument       u64   Get, Map: the first byte; Count: what is added; Scan, Info: the
//!                                cursor;
//!                                Create: the quota in bytes, 0 for none
//!      32  expires_ms     u64   Unix time; 0: the tablespace's default; all ones: as it was;
//!                                all ones but the last: never;
//!                                Create: how long items live in ms, 0 for ever
//!      40  flags          u32   the client's own; Scan: 1 for rows with heads; Info: the section;
//!                                Create: the codec, and 2^16 if it evicts
//!      44  limit          u32   Scan: the most rows of an answer; 0: as many as fit; Get: how many
//!                                values the client has read one-sided since it last said so
//! ```
//!
//! Behind the value comes the request's number, if there is one: client u64, sequence u64, since
//! u64 ([`RequestId`]). A member of a cluster carries such a change out once, however often it is
//! asked.
//!
//! Short calls travel as parameters of the RPC; longer ones as its payload, with the same bytes.
//! The answer of an operation on one key is an [`AnswerHead`], behind it what a Get has read: from
//! byte `argument` on, as much as fits the client's buffer. So a client reads a long value in
//! pieces, and knows by the version whether they belong together.

use remora::kernel::CallStatus;
use thiserror::Error;

use crate::log::Position;
use crate::request::RequestId;

/// Bytes of the head.
pub const HEAD_LEN: usize = 48;
/// Bytes of a request's number behind a call.
const REQUEST_LEN: usize = 24;
/// Beside the placement: the client was sent here; a request's number follows.
const ASKING: u8 = 0x40;
const NUMBERED: u8 = 0x80;
/// Where the head has its limit.
pub(super) const LIMIT_AT: usize = 44;
/// Bytes of an [`AnswerHead`].
pub const ANSWER_LEN: usize = 24;
/// The longest key, in bytes.
pub const KEY_MAX: usize = 64 << 10;
/// The longest value, in bytes.
pub const VALUE_MAX: usize = 16 << 20;
/// The longest predicate, in bytes.
pub const PREDICATE_MAX: usize = 64 << 10;
/// An expiry that stays as it was.
pub const EXPIRY_KEPT: u64 = u64::MAX;
/// No expiry, whatever the tablespace's default is.
pub const EXPIRY_NEVER: u64 = u64::MAX - 1;
/// Flag of a Scan: each row's value has an [`AnswerHead`] before it, and a row that is longer than
/// an answer comes without its value, whose length the head has.
pub const WITH_HEADS: u32 = 1;
/// The flag of an answer to Describe: clients are not to see what is not on the store's disk.
pub const HOLDS_BACK: u32 = 1;
/// The flag of an answer to Describe whose version is a tablespace's number, since the store is a
/// part of a cluster: a client that reads without a kernel needs a lease ([`Operation::Lease`]).
pub const LEASED: u32 = 2;
/// The expiry of a Scan's answer in a cluster, while keys go from this group to another one; else
/// it is up to where in its log the group has handed keys to others.
pub const KEYS_ON_THEIR_WAY: u64 = u64::MAX;
/// Flag of a Create: the tablespace lets go what was not used for some time.
pub const EVICTS: u32 = 1 << 16;
/// The first of the store's op-codes: `store` in ASCII.
const OPCODES: u64 = 0x73_746F_7265 << 8;

/// What is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Operation {
    /// Reads a value.
    Get = 0,
    /// Writes a value.
    Put = 1,
    /// Removes a key.
    Delete = 2,
    /// Changes a key's expiry.
    Touch = 3,
    /// Adds to a value that is a decimal number.
    Count = 4,
    /// Reads rows of a tablespace from a cursor on.
    Scan = 5,
    /// Removes all keys of a tablespace.
    Flush = 6,
    /// Looks up the number of a tablespace, whose name is the key. The answer has it as version.
    Tablespace = 7,
    /// Reads what a reader of buckets has to know ([`super::index`]). The answer has the store's
    /// clock as expiry, in milliseconds of Unix time.
    Describe = 8,
    /// Reads what the store says of itself ([`super::info`]).
    Info = 9,
    /// Makes a tablespace, whose name is the key. The answer has its number as version.
    Create = 10,
    /// Drops a tablespace with all its keys.
    Drop = 11,
    /// Reads the cluster's map ([`super::map`]). The answer has the whole map's length and, as
    /// version, its checksum.
    Map = 12,
    /// Asks a primary for how long its memory can be READ. The answer has nanoseconds from when
    /// the client has sent the call as expiry, and up to where the log is committed as version.
    Lease = 13,
}

impl Operation {
    /// All operations.
    pub const ALL: [Operation; 14] = {
        use Operation::*;
        [
            Get, Put, Delete, Touch, Count, Scan, Flush, Tablespace, Describe, Info, Create, Drop,
            Map, Lease,
        ]
    };

    /// Its op-code.
    pub const fn opcode(self) -> u64 {
        OPCODES | self as u64
    }

    /// The operation with this op-code.
    pub fn of(opcode: u64) -> Option<Operation> {
        Operation::ALL.into_iter().find(|operation| operation.opcode() == opcode)
    }

    /// Does it change the store?
    pub const fn changes(self) -> bool {
        use Operation::*;
        !matches!(self, Get | Scan | Tablespace | Describe | Info | Map | Lease)
    }

    /// Does it change one key? In a cluster, such a call can have a request's number.
    pub const fn is_of_a_key(self) -> bool {
        use Operation::*;
        matches!(self, Put | Delete | Touch | Count)
    }

    /// Its name, as people read it.
    pub const fn name(self) -> &'static str {
        match self {
            Operation::Get => "get",
            Operation::Put => "put",
            Operation::Delete => "delete",
            Operation::Touch => "touch",
            Operation::Count => "count",
            Operation::Scan => "scan",
            Operation::Flush => "flush",
            Operation::Tablespace => "tablespace",
            Operation::Describe => "describe",
            Operation::Info => "info",
            Operation::Create => "create",
            Operation::Drop => "drop",
            Operation::Map => "map",
            Operation::Lease => "lease",
        }
    }
}

/// What has to hold for an operation to be carried out.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Condition<'a> {
    /// Nothing.
    #[default]
    None,
    /// The key is not there.
    Absent,
    /// The key is there.
    Present,
    /// The value has this version.
    Version(u64),
    /// The value is equal to this one.
    Value(&'a [u8]),
    /// The value passes this predicate, in its binary form (`select`).
    Predicate(&'a [u8]),
}

impl<'a> Condition<'a> {
    fn code(self) -> u8 {
        match self {
            Condition::None => 0,
            Condition::Absent => 1,
            Condition::Present => 2,
            Condition::Version(_) => 3,
            Condition::Value(_) => 4,
            Condition::Predicate(_) => 5,
        }
    }

    fn bytes(self) -> &'a [u8] {
        match self {
            Condition::Value(bytes) | Condition::Predicate(bytes) => bytes,
            _ => &[],
        }
    }

    fn number(self) -> u64 {
        if let Condition::Version(version) = self { version } else { 0 }
    }

    fn read(code: u8, number: u64, bytes: &'a [u8]) -> Result<Condition<'a>, BadCall> {
        let condition = match code {
            0 => Condition::None,
            1 => Condition::Absent,
            2 => Condition::Present,
            3 => Condition::Version(number),
            4 => Condition::Value(bytes),
            5 => Condition::Predicate(bytes),
            _ => return Err(BadCall::Code),
        };
        // What no condition uses is zero, so that a call has one form.
        let unused = condition.bytes().is_empty() && !bytes.is_empty();
        let unused = unused || !matches!(condition, Condition::Version(_)) && number != 0;
        if unused { Err(BadCall::Unused) } else { Ok(condition) }
    }
}

/// Where a Put puts its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
pub enum Placement {
    /// In place of the old value.
    #[default]
    Set = 0,
    /// Behind the old value.
    Append = 1,
    /// Before the old value.
    Prepend = 2,
}

/// A call's arguments. What an operation does not use is left at its default.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Call<'a> {
    /// The number of the tablespace.
    pub tablespace: u16,
    /// What has to hold.
    pub condition: Condition<'a>,
    /// Of a Put: where the value goes.
    pub placement: Placement,
    /// The key.
    pub key: &'a [u8],
    /// The value of a Put; the plan of a Scan.
    pub value: &'a [u8],
    /// Of a Get: the first byte; of a Count: what is added (two's complement); of a Scan or an
    /// Info: the cursor; of a Create: the quota, 0 for none.
    pub argument: u64,
    /// When the key expires, in milliseconds of Unix time; 0 for as the tablespace has it by
    /// default (of a Touch: for never), [`EXPIRY_KEPT`] for as it was, [`EXPIRY_NEVER`] for never.
    pub expires_ms: u64,
    /// The client's own flags; of a Scan: [`WITH_HEADS`] or 0; of an Info: the section; of a
    /// Create: the number of the codec, and [`EVICTS`] if it does.
    pub flags: u32,
    /// Of a Scan: the most rows of an answer; 0 for as many as fit. Of a Get: how many values the
    /// client has read one-sided since it last said so, for the store's statistics.
    pub limit: u32,
    /// Of a change in a cluster: which request of which client it is.
    pub request: Option<RequestId>,
    /// Whether the group that the key comes from has sent the client here.
    pub is_asking: bool,
}

/// Why bytes are not a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum BadCall {
    /// The bytes end before the head, or are not as many as the head says.
    #[error("a call of {0} bytes, which is not what its head says")]
    Length(usize),
    /// Unknown condition or placement.
    #[error("an unknown condition or placement")]
    Code,
    /// A field that the condition does not use is not zero.
    #[error("a field that the condition does not use")]
    Unused,
    /// Key, condition or value is too long.
    #[error("too long: a key has at most 64 KiB, a value 16 MiB, a predicate 64 KiB")]
    TooLong,
}

impl<'a> Call<'a> {
    /// The lengths behind a head: key, condition, value. A receiver can so make room before the
    /// rest of a long call has come.
    ///
    /// # Errors
    /// The head is short, or a length is beyond its limit.
    pub fn lengths(bytes: &[u8]) -> Result<[usize; 3], BadCall> {
        let head = bytes.get(..HEAD_LEN).ok_or(BadCall::Length(bytes.len()))?;
        let lengths = [4, 8, 12].map(|at| u32_at(head, at) as usize);
        let limits = [KEY_MAX, VALUE_MAX.max(PREDICATE_MAX), VALUE_MAX];
        let fits = lengths.iter().zip(limits).all(|(len, limit)| *len <= limit);
        if fits { Ok(lengths) } else { Err(BadCall::TooLong) }
    }

    /// The bytes of a whole call with this head.
    ///
    /// # Errors
    /// See [`Call::lengths`].
    pub fn whole(bytes: &[u8]) -> Result<usize, BadCall> {
        let parts: usize = Call::lengths(bytes)?.iter().sum();
        let number = if bytes[3] & NUMBERED == 0 { 0 } else { REQUEST_LEN };
        Ok(HEAD_LEN + parts + number)
    }

    /// Reads a call.
    ///
    /// # Errors
    /// See [`BadCall`].
    pub fn parse(bytes: &'a [u8]) -> Result<Call<'a>, BadCall> {
        let [key, condition, value] = Call::lengths(bytes)?;
        let rest = &bytes[HEAD_LEN..];
        if Call::whole(bytes)? != bytes.len() {
            return Err(BadCall::Length(bytes.len()));
        }
        let (key, rest) = rest.split_at(key);
        let (compared, rest) = rest.split_at(condition);
        let (value, number) = rest.split_at(value);
        let condition = Condition::read(bytes[2], u64_at(bytes, 16), compared)?;
        if matches!(condition, Condition::Predicate(plan) if plan.len() > PREDICATE_MAX) {
            return Err(BadCall::TooLong);
        }
        let placement = match bytes[3] & !(ASKING | NUMBERED) {
            0 => Placement::Set,
            1 => Placement::Append,
            2 => Placement::Prepend,
            _ => return Err(BadCall::Code),
        };
        Ok(Call {
            tablespace: u16::from_le_bytes([bytes[0], bytes[1]]),
            condition,
            placement,
            key,
            value,
            argument: u64_at(bytes, 24),
            expires_ms: u64_at(bytes, 32),
            flags: u32_at(bytes, 40),
            limit: u32_at(bytes, 44),
            request: (!number.is_empty()).then(|| request_of(number)),
            is_asking: bytes[3] & ASKING != 0,
        })
    }

    /// Whether what a call of these bytes does depends on the value that is there: it has a
    /// condition or a placement.
    pub(super) fn depends(bytes: &[u8]) -> bool {
        bytes.get(2..4).is_some_and(|codes| codes[0] != 0 || codes[1] & !(ASKING | NUMBERED) != 0)
    }

    /// The number of bytes of the call.
    pub fn len(&self) -> usize {
        let number = self.request.map_or(0, |_| REQUEST_LEN);
        HEAD_LEN + self.key.len() + self.condition.bytes().len() + self.value.len() + number
    }

    /// A call has a head, so it is never empty.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Appends the call's bytes to `out`.
    ///
    /// # Errors
    /// Key, condition or value is too long.
    pub fn write(&self, out: &mut Vec<u8>) -> Result<(), BadCall> {
        self.write_before_value(self.value.len(), out)?;
        out.extend_from_slice(self.value);
        if let Some(RequestId { client, sequence, since }) = self.request {
            let words = [client, sequence, since.number()];
            words.iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
        }
        Ok(())
    }

    /// Appends the call's bytes up to its value, which has so many bytes and lies elsewhere. The
    /// number of its request, if it has one, follows the value.
    ///
    /// # Errors
    /// Key, condition or value is too long.
    pub fn write_before_value(&self, value_len: usize, out: &mut Vec<u8>) -> Result<(), BadCall> {
        let compared = self.condition.bytes();
        let parts = [self.key.len(), compared.len(), value_len];
        let mut head = [0; HEAD_LEN];
        head[..2].copy_from_slice(&self.tablespace.to_le_bytes());
        head[2] = self.condition.code();
        let asking = if self.is_asking { ASKING } else { 0 };
        let numbered = self.request.map_or(0, |_| NUMBERED);
        head[3] = self.placement as u8 | asking | numbered;
        for (at, len) in [4, 8, 12].into_iter().zip(parts) {
            let len = u32::try_from(len).map_err(|_| BadCall::TooLong)?;
            head[at..at + 4].copy_from_slice(&len.to_le_bytes());
        }
        head[16..24].copy_from_slice(&self.condition.number().to_le_bytes());
        head[24..32].copy_from_slice(&self.argument.to_le_bytes());
        head[32..40].copy_from_slice(&self.expires_ms.to_le_bytes());
        head[40..44].copy_from_slice(&self.flags.to_le_bytes());
        head[44..].copy_from_slice(&self.limit.to_le_bytes());
        Call::lengths(&head)?;
        if matches!(self.condition, Condition::Predicate(plan) if plan.len() > PREDICATE_MAX) {
            return Err(BadCall::TooLong);
        }
        out.extend_from_slice(&head);
        [self.key, compared].iter().for_each(|part| out.extend_from_slice(part));
        Ok(())
    }
}

/// The number of a request, of so many bytes.
fn request_of(bytes: &[u8]) -> RequestId {
    let since = Position::from_number(u64_at(bytes, 16));
    RequestId { client: u64_at(bytes, 0), sequence: u64_at(bytes, 8), since }
}

/// Why the store does not carry out a call, beyond what [`CallStatus`] says of kernels in general.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Error)]
#[repr(u8)]
pub enum Refused {
    /// The condition does not hold.
    #[error("the condition does not hold")]
    Condition = 128,
    /// The tablespace, or the store, is full and evicts nothing.
    #[error("the tablespace is full: delete keys, raise its quota, or let it evict")]
    Full = 129,
    /// The key is empty, or the key or the value is longer than the store takes.
    #[error(
        "the key is empty, or the key or the value is longer than the store takes: a key has up \
         to 64 KiB, a value up to 16 MiB, and in a cluster both no more than a quarter of `--ring`"
    )]
    TooLarge = 130,
    /// No tablespace has the number.
    #[error("there is no such tablespace")]
    Tablespace = 131,
    /// The log cannot be written, so that nothing may change.
    #[error("the store is read-only, since its log cannot be written")]
    ReadOnly = 132,
    /// The value that was to be counted on is no number, or would overflow.
    #[error("the value is no decimal number, or would leave 64 bits")]
    Number = 133,
    /// The predicate or plan is malformed, or asks for more work than is allowed.
    #[error("the predicate is malformed, or asks for more than is allowed")]
    Predicate = 134,
    /// The value is, or would be, stored in a form that this store's build does not know.
    #[error("this store's build lacks the codec: build it with the feature `zstd`")]
    Codec = 135,
    /// A tablespace has the name already.
    #[error("there is a tablespace of that name already: choose another, or drop that one first")]
    Exists = 136,
    /// There are as many tablespaces as there can be.
    #[error("there are as many tablespaces as there can be: drop one first")]
    Tablespaces = 137,
    /// Redis' or memcached's clients use the tablespace as one of theirs.
    #[error("the clients of Redis and memcached count on this tablespace: flush it instead")]
    Kept = 138,
    /// Another node has the key, or the node is not the primary of its group.
    #[error("another node of the cluster serves the key: ask for the map")]
    Elsewhere = 139,
    /// The key's slot goes to another group, which is to be asked for this key.
    #[error("the key's slot is on its way to another group: ask that one for the key")]
    Asks = 140,
    /// Nobody can change the key at the moment, or all of the node's keys.
    #[error("the key is on its way to another group: try again")]
    OnItsWay = 141,
    /// The node has ceased to be the primary while it carried the call out.
    #[error("the node has ceased to be the primary: nobody knows whether the call took effect")]
    Doubt = 142,
    /// The request's client is not known any more.
    #[error("the group has forgotten the client's requests: nobody knows what became of this one")]
    Forgotten = 143,
    /// What is asked for is not to be had in a cluster, or only there.
    #[error("in a cluster, clients over the card use the keys of tablespace db0 only")]
    Cluster = 144,
}

impl Refused {
    /// All reasons.
    pub const ALL: [Refused; 17] = {
        use Refused::*;
        [
            Condition,
            Full,
            TooLarge,
            Tablespace,
            ReadOnly,
            Number,
            Predicate,
            Codec,
            Exists,
            Tablespaces,
            Kept,
            Elsewhere,
            Asks,
            OnItsWay,
            Doubt,
            Forgotten,
            Cluster,
        ]
    };

    /// The status that says so.
    pub const fn status(self) -> CallStatus {
        CallStatus(self as u8)
    }

    /// The reason that a status says.
    pub fn of(status: CallStatus) -> Option<Refused> {
        Refused::ALL.into_iter().find(|refused| refused.status() == status)
    }
}

/// What an answer begins with: of the value that was read, or that the change has made.
///
/// ```text
/// byte  0  version     u64
///       8  expires_ms  u64   0: never
///      16  flags       u32
///      20  value_len   u32
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct AnswerHead {
    /// The version.
    pub version: u64,
    /// When the key expires, in milliseconds of Unix time; 0 for never.
    pub expires_ms: u64,
    /// The client's flags.
    pub flags: u32,
    /// Bytes of the value.
    pub value_len: u32,
}

impl AnswerHead {
    /// Reads the head of an answer. Returns it with what follows; `None` if the bytes are no
    /// answer.
    pub fn parse(bytes: &[u8]) -> Option<(AnswerHead, &[u8])> {
        let (head, rest) = bytes.split_at_checked(ANSWER_LEN)?;
        let (version, expires_ms) = (u64_at(head, 0), u64_at(head, 8));
        let (flags, value_len) = (u32_at(head, 16), u32_at(head, 20));
        Some((AnswerHead { version, expires_ms, flags, value_len }, rest))
    }

    /// The head's bytes.
    pub fn to_bytes(&self) -> [u8; ANSWER_LEN] {
        let mut out = [0; ANSWER_LEN];
        out[..8].copy_from_slice(&self.version.to_le_bytes());
        out[8..16].copy_from_slice(&self.expires_ms.to_le_bytes());
        out[16..20].copy_from_slice(&self.flags.to_le_bytes());
        out[20..].copy_from_slice(&self.value_len.to_le_bytes());
        out
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([0, 1, 2, 3].map(|i| bytes[at + i]))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|i| bytes[at + i]))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn conditions(bytes: &[u8], number: u64) -> [Condition<'_>; 6] {
        [
            Condition::None,
            Condition::Absent,
            Condition::Present,
            Condition::Version(number),
            Condition::Value(bytes),
            Condition::Predicate(bytes),
        ]
    }

    proptest! {
        #[test]
        fn calls_round_trip(
            tablespace: u16, which in 0..6usize, number: u64, argument: u64, expires_ms: u64,
            flags: u32, limit: u32, numbers: Option<(u64, u64, u64)>, is_asking: bool,
            key: Vec<u8>, compared: Vec<u8>, value: Vec<u8>,
        ) {
            let condition = conditions(&compared, number)[which];
            let (key, value) = (&key[..], &value[..]);
            let placement = Placement::Prepend;
            let request = numbers.map(|(client, sequence, since)| {
                RequestId { client, sequence, since: Position::from_number(since) }
            });
            let call = Call {
                tablespace, condition, placement, key, value, argument, expires_ms, flags, limit,
                request, is_asking,
            };
            let mut bytes = Vec::new();
            call.write(&mut bytes).unwrap();
            prop_assert_eq!(bytes.len(), call.len());
            prop_assert_eq!(Call::parse(&bytes), Ok(call));
            let (mut before, bare) = (Vec::new(), Call { value: &[], ..call });
            bare.write_before_value(value.len(), &mut before).unwrap();
            prop_assert!(bytes.starts_with(&before) && bytes[before.len()..].starts_with(value));
        }

        #[test]
        fn any_bytes_are_a_call_or_refused(bytes: Vec<u8>) {
            if let Ok(call) = Call::parse(&bytes) {
                let mut again = Vec::new();
                call.write(&mut again).unwrap();
                prop_assert_eq!(again, bytes);
            }
        }
    }

    #[test]
    fn a_call_that_lies_is_refused() {
        let mut bytes = Vec::new();
        Call { key: b"key", value: b"value", ..Call::default() }.write(&mut bytes).unwrap();
        assert_eq!(Call::parse(&bytes[..20]), Err(BadCall::Length(20)));
        assert_eq!(Call::parse(&bytes[..50]), Err(BadCall::Length(50)));
        let with = |at: usize, to: u8| {
            let mut bytes = bytes.clone();
            bytes[at] = to;
            Call::parse(&bytes).map(drop)
        };
        assert_eq!(with(2, 6), Err(BadCall::Code));
        assert_eq!(with(3, 3), Err(BadCall::Code));
        assert_eq!(with(7, 1), Err(BadCall::TooLong));
        assert_eq!(with(16, 1), Err(BadCall::Unused));
        assert_eq!(with(4, 2), Err(BadCall::Length(56)));
    }

    #[test]
    fn op_codes_and_answers_round_trip() {
        for operation in Operation::ALL {
            assert_eq!(Operation::of(operation.opcode()), Some(operation));
        }
        assert_eq!(Operation::of(7), None);
        for refused in Refused::ALL {
            assert_eq!(Refused::of(refused.status()), Some(refused));
        }
        assert_eq!(Refused::of(CallStatus::OK), None);
        let head = AnswerHead { version: 1 << 40, expires_ms: 7, flags: 9, value_len: 2 };
        let bytes = [&head.to_bytes()[..], b"ab"].concat();
        assert_eq!(AnswerHead::parse(&bytes), Some((head, &b"ab"[..])));
        assert_eq!(AnswerHead::parse(&bytes[..23]), None);
    }
}
