//! The bytes of a call: the header before the kernel's own parameters, and the status word. (`io`
//! sends the word, and the other ways in which a call's end is told.)
//!
//! StRoM leaves open how a kernel learns where its results go. Here the payload of an RPC, and of
//! the first packet of an RPC WRITE, begins with a header, all fields little-endian:
//!
//! ```text
//! byte  0  notify      u8    0 nothing, 1 immediate, 2 status word, 3 immediate and word
//!       1  flags       u8    1: results stay in the caller's memory (local calls only)
//!       2  params_len  u16   bytes of parameters behind the header
//!       4  rkey        u32   \
//!       8  addr        u64    > where results go, and how many bytes fit there
//!      16  max_len     u32   /
//!      20  status_rkey u32   \ where the status word goes, if one is asked for
//!      24  status_addr u64   /
//!      32  cookie      u64   comes back in the answer
//! ```
//!
//! The payload of an RPC WRITE follows the parameters; header and parameters must lie in its first
//! packet, or the answer is [`CallStatus::BAD_PARAMS`]. The last message of an answer is a WRITE
//! WITH IMMEDIATE, or a [`StatusWord`] follows it. The immediate has the status in its high 8 bits
//! and the low 24 bits of the cookie. The last bytes of a status word are written last.

use thiserror::Error;

use crate::counters::Counters;
use crate::memory::key::Pd;
use crate::queue::RemoteAddress;

/// Bytes of a [`Header`].
pub const HEADER_LEN: usize = 40;
/// Bytes of a [`StatusWord`].
pub const STATUS_WORD_LEN: usize = 16;

/// How the requester is told that an invocation has ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Notify {
    /// The requester is not told.
    #[default]
    Nothing,
    /// By WRITE WITH IMMEDIATE, which completes one of the requester's receive requests.
    Immediate,
    /// By a [`StatusWord`], which the requester polls.
    Word(RemoteAddress),
    /// By WRITE WITH IMMEDIATE. If that WRITE does not carry all results, a [`StatusWord`] is
    /// written before it, which has the length of all.
    Both(RemoteAddress),
}

/// The header before a kernel's own parameters.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Header {
    /// How the requester is told of the end.
    pub notify: Notify,
    /// Results go to the caller's own memory, not to its peer's: for local calls only.
    pub local: bool,
    /// Bytes of parameters behind the header.
    pub params_len: u16,
    /// The requester's buffer for the results.
    pub to: RemoteAddress,
    /// Bytes of that buffer.
    pub max_len: u32,
    /// The requester's number for the call, which comes back in the answer.
    pub cookie: u64,
}

/// Why bytes are not a legal header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum BadHeader {
    /// Fewer bytes than a header and its parameters take.
    #[error("the call is shorter than its header and parameters")]
    Short,
    /// An unknown way to notify, or unknown flags.
    #[error("unknown flags or way to notify")]
    Flags,
}

impl Header {
    /// Bytes of the header and its parameters.
    pub(crate) fn len(&self) -> usize {
        HEADER_LEN + usize::from(self.params_len)
    }

    /// Reads the header. Returns it with the parameters and the payload behind them.
    ///
    /// # Errors
    /// [`BadHeader::Short`] if there are fewer bytes than a header and its parameters take,
    /// [`BadHeader::Flags`] for unknown flags or an unknown way to notify.
    pub fn parse(bytes: &[u8]) -> Result<(Header, &[u8], &[u8]), BadHeader> {
        let (header, rest) = Header::split(bytes)?;
        let behind = rest.split_at_checked(header.params_len.into()).ok_or(BadHeader::Short)?;
        Ok((header, behind.0, behind.1))
    }

    /// Reads the header. Returns it with what is behind it.
    pub(crate) fn split(bytes: &[u8]) -> Result<(Header, &[u8]), BadHeader> {
        let (head, rest) = bytes.split_first_chunk::<HEADER_LEN>().ok_or(BadHeader::Short)?;
        let u32_at = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| head[at + i]));
        let u64_at = |at: usize| u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|i| head[at + i]));
        let notify = match head[0] {
            0 => Notify::Nothing,
            1 => Notify::Immediate,
            2 => Notify::Word(RemoteAddress { addr: u64_at(24), rkey: u32_at(20) }),
            3 => Notify::Both(RemoteAddress { addr: u64_at(24), rkey: u32_at(20) }),
            _ => return Err(BadHeader::Flags),
        };
        if head[1] > 1 {
            return Err(BadHeader::Flags);
        }
        let header = Header {
            notify,
            local: head[1] == 1,
            params_len: u16::from_le_bytes([head[2], head[3]]),
            to: RemoteAddress { addr: u64_at(8), rkey: u32_at(4) },
            max_len: u32_at(16),
            cookie: u64_at(32),
        };
        Ok((header, rest))
    }

    /// The header's bytes.
    pub fn to_bytes(&self) -> [u8; HEADER_LEN] {
        let mut out = [0; HEADER_LEN];
        let word = match self.notify {
            Notify::Nothing => RemoteAddress::default(),
            Notify::Immediate => {
                out[0] = 1;
                RemoteAddress::default()
            }
            Notify::Word(at) => {
                out[0] = 2;
                at
            }
            Notify::Both(at) => {
                out[0] = 3;
                at
            }
        };
        out[1] = self.local.into();
        out[2..4].copy_from_slice(&self.params_len.to_le_bytes());
        out[4..8].copy_from_slice(&self.to.rkey.to_le_bytes());
        out[8..16].copy_from_slice(&self.to.addr.to_le_bytes());
        out[16..20].copy_from_slice(&self.max_len.to_le_bytes());
        out[20..24].copy_from_slice(&word.rkey.to_le_bytes());
        out[24..32].copy_from_slice(&word.addr.to_le_bytes());
        out[32..].copy_from_slice(&self.cookie.to_le_bytes());
        out
    }
}

/// An invocation, as the card hands it to [`super::Kernels::call`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Call {
    /// The queue pair that it came on, or, for a local call, that the answer goes to.
    pub qpn: u32,
    /// That queue pair's protection domain.
    pub pd: Pd,
    /// The client that the queue pair belongs to, where several programs share the card
    /// ([`crate::QpInit::client`]).
    pub client: u16,
    /// The RPC op-code (StRoM §5.1).
    pub opcode: u64,
    /// The header: where the results go, and how the requester is told of the end.
    pub header: Header,
}

/// How an invocation ended, as a code for its requester.
///
/// Codes from 128 on are free for kernels to use.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct CallStatus(pub u8);

macro_rules! statuses {
    ($($(#[doc = $doc:literal])+ $name:ident = $code:literal, $counter:ident, $text:literal;)+) => {
        impl CallStatus {
            $($(#[doc = $doc])+ pub const $name: CallStatus = CallStatus($code);)+

            /// The meaning of the code.
            pub fn text(self) -> &'static str {
                match self {
                    $(CallStatus::$name => $text,)+
                    CallStatus(128..) => "an error of the kernel's own",
                    _ => "an unknown status",
                }
            }

            /// Counts an invocation that ended with this status.
            pub(crate) fn count(self, counters: &mut Counters) {
                match self {
                    $(CallStatus::$name => counters.$counter += 1,)+
                    _ => counters.kernel_failed += 1,
                }
            }
        }
    };
}

statuses! {
    /// The kernel has done its work.
    OK = 0, kernel_done, "success";
    /// Neither a kernel nor a fallback is deployed for the op-code.
    NO_KERNEL = 1, refused_no_kernel, "no kernel is deployed for this op-code";
    /// The parameters are malformed.
    BAD_PARAMS = 2, kernel_bad_params, "the kernel refuses the parameters";
    /// The object that was looked for is not there.
    NOT_FOUND = 3, kernel_not_found, "not found";
    /// The result does not fit the requester's buffer.
    TOO_LONG = 4, kernel_too_long, "the result is longer than the buffer for it";
    /// The kernel used memory that is not granted, is deregistered or cannot be reached.
    ACCESS = 5, kernel_access, "the kernel may not reach that memory";
    /// The invocation took more steps than allowed, for example because of a cycle in a list.
    BUDGET = 6, kernel_budget, "the invocation took more steps than it may";
    /// The object was inconsistent at every reading.
    INCONSISTENT = 7, kernel_inconsistent, "the object's checksum was wrong at every reading";
    /// The kernel itself failed.
    TRAP = 8, kernel_trap, "the kernel failed";
    /// The kernel wanted more memory than it may have.
    MEMORY = 9, kernel_memory, "the kernel wanted more memory than it may have";
    /// The host's fallback has no room, or is gone.
    UNAVAILABLE = 10, kernel_unavailable, "the host's fallback is busy or gone";
    /// The kernel was unloaded while the invocation ran.
    UNLOADED = 11, kernel_unloaded, "the kernel was unloaded";
    /// The results could not be sent in time, as their queue pair or the card was held up.
    CONGESTED = 12, kernel_congested, "the results did not get away in time";
    /// The rest of the payload did not come in time: the requester is held up, or gone.
    LATE = 13, kernel_late, "the rest of the payload did not come in time";
}

impl CallStatus {
    /// The immediate data with this status, for the call with this cookie.
    pub const fn immediate(self, cookie: u64) -> u32 {
        (self.0 as u32) << 24 | (cookie & 0xFF_FFFF) as u32
    }

    /// The status and the low 24 bits of the cookie, from immediate data.
    pub const fn from_immediate(immediate: u32) -> (CallStatus, u32) {
        (CallStatus((immediate >> 24) as u8), immediate & 0xFF_FFFF)
    }
}

impl core::fmt::Display for CallStatus {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} (status {})", self.text(), self.0)
    }
}

/// The word that tells a requester that its invocation has ended: cookie u64, length u32, status
/// u32 with the top bit set. All are little-endian, and the bytes become visible in rising order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StatusWord {
    /// The call's cookie.
    pub cookie: u64,
    /// Bytes of results; none with [`CallStatus::ACCESS`].
    pub len: u32,
    /// How the invocation ended.
    pub status: CallStatus,
}

impl StatusWord {
    /// The word's bytes.
    pub fn to_bytes(&self) -> [u8; STATUS_WORD_LEN] {
        let mut out = [0; STATUS_WORD_LEN];
        out[..8].copy_from_slice(&self.cookie.to_le_bytes());
        out[8..12].copy_from_slice(&self.len.to_le_bytes());
        out[12..].copy_from_slice(&(u32::from(self.status.0) | 1 << 31).to_le_bytes());
        out
    }

    /// Reads the word's bytes. `None` while the call has not ended.
    pub fn parse(bytes: &[u8; STATUS_WORD_LEN]) -> Option<StatusWord> {
        let u32_at = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| bytes[at + i]));
        let last = u32_at(12);
        (last >> 31 == 1).then(|| StatusWord {
            cookie: u64::from(u32_at(0)) | u64::from(u32_at(4)) << 32,
            len: u32_at(8),
            status: CallStatus(last as u8),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            notify: Notify::Word(RemoteAddress { addr: 0x1122_3344_5566_7788, rkey: 0x99AA_BBCC }),
            local: false,
            params_len: 3,
            to: RemoteAddress { addr: 0x0102_0304_0506_0708, rkey: 0x0A0B_0C0D },
            max_len: 64,
            cookie: 42,
        }
    }

    const BYTES: [u8; HEADER_LEN] = [
        2, 0, 3, 0, 0x0D, 0x0C, 0x0B, 0x0A, 8, 7, 6, 5, 4, 3, 2, 1, 64, 0, 0, 0, 0xCC, 0xBB, 0xAA,
        0x99, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 42, 0, 0, 0, 0, 0, 0, 0,
    ];

    #[test]
    fn a_header_is_built() {
        assert_eq!(header().to_bytes(), BYTES);
    }

    #[test]
    fn a_header_is_parsed_with_what_follows() {
        let mut bytes = BYTES.to_vec();
        bytes.extend_from_slice(b"abcdata");
        assert_eq!(Header::parse(&bytes), Ok((header(), &b"abc"[..], &b"data"[..])));
    }

    #[test]
    fn what_is_short_or_unknown_is_refused() {
        for len in 0..HEADER_LEN + 3 {
            let mut bytes = BYTES.to_vec();
            bytes.extend_from_slice(b"abc");
            assert_eq!(Header::parse(&bytes[..len]), Err(BadHeader::Short));
        }
        for at in [0, 1] {
            let mut bytes = [0; HEADER_LEN];
            bytes[at] = 4;
            assert_eq!(Header::parse(&bytes), Err(BadHeader::Flags));
        }
    }

    #[test]
    fn a_status_word_is_there_when_its_last_byte_is() {
        let word = StatusWord { cookie: u64::MAX - 5, len: 77, status: CallStatus::TOO_LONG };
        assert_eq!(StatusWord::parse(&word.to_bytes()), Some(word));
        assert_eq!(StatusWord::parse(&[0; 16]), None);
        let immediate = CallStatus::ACCESS.immediate(0xFFFF_FFFF_1234);
        assert_eq!(CallStatus::from_immediate(immediate), (CallStatus::ACCESS, 0xFF_1234));
    }
}
