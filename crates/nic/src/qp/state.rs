//! The queue pair's states, its attributes, and the table of the transitions between states.

use bitflags::bitflags;
use thiserror::Error;

use crate::chain::Queue;
use crate::congestion::Congestion;
use crate::memory::key::Access;
use crate::psn::Psn;
use crate::transmit::Path;
use crate::wire::Dialect;

/// A queue pair's state.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum State {
    /// Just created, or taken back to the beginning.
    Reset,
    /// Takes receive requests, and neither receives nor sends.
    Init,
    /// Ready to receive.
    Rtr,
    /// Ready to receive and to send.
    Rts,
    /// Send queue draining: finishes outstanding requests, and begins no others.
    Sqd,
    /// Send queue error (unreliable services): receives, does not send.
    Sqe,
    /// Error: everything is flushed.
    Error,
}

impl State {
    /// Does a queue pair in this state take work of this kind?
    #[inline]
    pub fn takes(self, queue: Queue) -> bool {
        match queue {
            Queue::Send => !matches!(self, State::Reset | State::Init | State::Rtr),
            Queue::Recv => self != State::Reset,
        }
    }
}

/// The path MTU: bytes of payload in a full packet.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[repr(u16)]
pub enum Mtu {
    /// 256 bytes.
    B256 = 256,
    /// 512 bytes.
    B512 = 512,
    /// 1024 bytes: for links with an IP MTU of 1500.
    B1024 = 1024,
    /// 2048 bytes.
    B2048 = 2048,
    /// 4096 bytes: for loopback and jumbo frames.
    B4096 = 4096,
}

impl Mtu {
    /// The path MTU in bytes.
    pub const fn bytes(self) -> u32 {
        self as u32
    }

    /// The path MTU of `bytes` bytes, if there is such a one.
    pub(crate) fn from_bytes(bytes: u16) -> Option<Mtu> {
        (1..=5).filter_map(Mtu::from_code).find(|mtu| *mtu as u16 == bytes)
    }

    /// The code that verbs and CM messages use, 1..=5.
    pub const fn code(self) -> u8 {
        match self {
            Mtu::B256 => 1,
            Mtu::B512 => 2,
            Mtu::B1024 => 3,
            Mtu::B2048 => 4,
            Mtu::B4096 => 5,
        }
    }

    /// The path MTU with this code.
    pub const fn from_code(code: u8) -> Option<Mtu> {
        Some(match code {
            1 => Mtu::B256,
            2 => Mtu::B512,
            3 => Mtu::B1024,
            4 => Mtu::B2048,
            5 => Mtu::B4096,
            _ => return None,
        })
    }

    /// The largest path MTU whose packets fit an IP packet of `ip_mtu` bytes.
    pub fn fitting(ip_mtu: usize) -> Mtu {
        // What is left beside IPv6 and UDP headers, the longest headers of data, pad and ICRC.
        let room = ip_mtu.saturating_sub(40 + 8 + crate::wire::MAX_DATA_HEADER + 3 + 4);
        [Mtu::B4096, Mtu::B2048, Mtu::B1024, Mtu::B512]
            .into_iter()
            .find(|m| m.bytes() as usize <= room)
            .unwrap_or(Mtu::B256)
    }
}

/// Attributes for [`crate::Nic::modify_qp`]. `None` leaves an attribute unchanged.
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct QpAttr {
    /// The state to go to.
    pub state: Option<State>,
    /// What peers may do through this queue pair.
    pub access: Option<Access>,
    /// The key that datagrams to this queue pair must carry. Its top bit is not set: such keys are
    /// privileged, like that of queue pair 1 ([`crate::cm::mad::CM_QKEY`]).
    pub qkey: Option<u32>,
    /// The path to the peer.
    pub path: Option<Path>,
    /// Bytes of payload in a full packet.
    pub path_mtu: Option<Mtu>,
    /// The peer's queue pair.
    pub dest_qp: Option<u32>,
    /// The first PSN to expect.
    pub rq_psn: Option<Psn>,
    /// The first PSN to send.
    pub sq_psn: Option<Psn>,
    /// READs and atomics that this queue pair may have outstanding at the peer, at most 16.
    pub max_rd_atomic: Option<u8>,
    /// READs and atomics that the peer may have outstanding here, at most 16.
    pub max_dest_rd_atomic: Option<u8>,
    /// The wait that RNR NAKs of this queue pair ask for: a code, see [`crate::qp::rnr_delay`].
    pub min_rnr_timer: Option<u8>,
    /// The wait for an acknowledge: 4.096 µs · 2^n with n at most 31; 0 means without limit.
    pub timeout: Option<u8>,
    /// Retries without progress, at most 7.
    pub retry_cnt: Option<u8>,
    /// RNR retries; 7 means without limit.
    pub rnr_retry: Option<u8>,
    /// The dialect. Both ends must have agreed to it.
    pub dialect: Option<Dialect>,
    /// What decides how many packets may be outstanding.
    pub congestion: Option<Congestion>,
}

bitflags! {
    /// Which attributes a [`QpAttr`] sets.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    struct Mask: u16 {
        const ACCESS = 1 << 0;
        const QKEY = 1 << 1;
        const PATH = 1 << 2;
        const MTU = 1 << 3;
        const DEST = 1 << 4;
        const RQ_PSN = 1 << 5;
        const SQ_PSN = 1 << 6;
        const MAX_RD = 1 << 7;
        const MAX_DEST_RD = 1 << 8;
        const MIN_RNR = 1 << 9;
        const TIMEOUT = 1 << 10;
        const RETRY = 1 << 11;
        const RNR_RETRY = 1 << 12;
        const DIALECT = 1 << 13;
        const CONGESTION = 1 << 14;
    }
}

/// Why attributes were refused. Everything is as before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum ModifyQpError {
    /// No such queue pair.
    #[error("no such queue pair")]
    UnknownQp,
    /// The state cannot follow the current one.
    #[error("a queue pair in {from:?} cannot go to {to:?}")]
    Transition {
        /// The current state.
        from: State,
        /// The state asked for.
        to: State,
    },
    /// The transition needs an attribute that is not given.
    #[error("going from {from:?} to {to:?} needs {missing}")]
    Missing {
        /// The current state.
        from: State,
        /// The state asked for.
        to: State,
        /// The names of the missing attributes.
        #[cfg_attr(feature = "serde", serde(deserialize_with = "by_name"))]
        missing: Name,
    },
    /// An attribute is given that this transition does not take.
    #[error("going from {from:?} to {to:?} does not take {extra}")]
    Extra {
        /// The current state.
        from: State,
        /// The state asked for.
        to: State,
        /// The name of an attribute that is not taken.
        #[cfg_attr(feature = "serde", serde(deserialize_with = "by_name"))]
        extra: Name,
    },
    /// A value is out of range.
    #[error("{0} is out of range")]
    Range(#[cfg_attr(feature = "serde", serde(deserialize_with = "by_name"))] Name),
    /// The Q_Key is one of those that no program may send with.
    #[error("the Q_Key {0:#x} is privileged: its top bit is set")]
    PrivilegedQkey(u32),
    /// The card is another process's, and that process has ended.
    #[error("the process that has the card has ended: attach again")]
    Gone,
}

/// The name of an attribute. (Serialized, it is not borrowed.)
type Name = &'static str;

impl QpAttr {
    fn mask(&self) -> Mask {
        let set = [
            (self.access.is_some(), Mask::ACCESS),
            (self.qkey.is_some(), Mask::QKEY),
            (self.path.is_some(), Mask::PATH),
            (self.path_mtu.is_some(), Mask::MTU),
            (self.dest_qp.is_some(), Mask::DEST),
            (self.rq_psn.is_some(), Mask::RQ_PSN),
            (self.sq_psn.is_some(), Mask::SQ_PSN),
            (self.max_rd_atomic.is_some(), Mask::MAX_RD),
            (self.max_dest_rd_atomic.is_some(), Mask::MAX_DEST_RD),
            (self.min_rnr_timer.is_some(), Mask::MIN_RNR),
            (self.timeout.is_some(), Mask::TIMEOUT),
            (self.retry_cnt.is_some(), Mask::RETRY),
            (self.rnr_retry.is_some(), Mask::RNR_RETRY),
            (self.dialect.is_some(), Mask::DIALECT),
            (self.congestion.is_some(), Mask::CONGESTION),
        ];
        set.into_iter().filter(|(is_set, _)| *is_set).fold(Mask::empty(), |m, (_, bit)| m | bit)
    }

    fn check_ranges(&self) -> Result<(), ModifyQpError> {
        let within = |value: Option<u8>, most: u8, name| match value {
            Some(v) if v > most => Err(ModifyQpError::Range(name)),
            _ => Ok(()),
        };
        within(self.max_rd_atomic, super::MAX_RD_ATOMIC, "max_rd_atomic")?;
        within(self.max_dest_rd_atomic, super::MAX_RD_ATOMIC, "max_dest_rd_atomic")?;
        within(self.min_rnr_timer, 31, "min_rnr_timer")?;
        within(self.timeout, 31, "timeout")?;
        within(self.retry_cnt, 7, "retry_cnt")?;
        within(self.rnr_retry, 7, "rnr_retry")?;
        // With such a key a program would speak for queue pair 1, which has all programs'
        // connections.
        if let Some(qkey) = self.qkey.filter(|qkey| qkey >> 31 == 1) {
            return Err(ModifyQpError::PrivilegedQkey(qkey));
        }
        match self.dest_qp {
            Some(qpn) if qpn > 0xFF_FFFF => Err(ModifyQpError::Range("dest_qp")),
            _ => Ok(()),
        }
    }
}

/// The columns of the table: a service, and for XRC the end of the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Service {
    Rc,
    Uc,
    Ud,
    /// An XRC sender.
    XrcSend,
    /// An XRC target.
    XrcReceive,
}

/// One row: the two states, and for each service the attributes that must and may be given.
struct Row {
    from: State,
    to: State,
    /// Required for RC, UC, UD, XRC senders and XRC targets.
    must: [Mask; 5],
    /// Optional for the same.
    may: [Mask; 5],
}

const fn mask(bits: &[Mask]) -> Mask {
    let mut all = 0;
    let mut i = 0;
    while i < bits.len() {
        all |= bits[i].bits();
        i += 1;
    }
    Mask::from_bits_truncate(all)
}

const NO: Mask = Mask::empty();
const CONNECT: Mask = mask(&[Mask::PATH, Mask::MTU, Mask::DEST, Mask::RQ_PSN]);
const ACCESS: Mask = Mask::ACCESS;
const OPTIONS: Mask = Mask::DIALECT.union(Mask::CONGESTION);
const ACCESS_RNR: Mask = Mask::ACCESS.union(Mask::MIN_RNR);
const RESPONDER: Mask = mask(&[CONNECT, Mask::MAX_DEST_RD, Mask::MIN_RNR]);
const REQUESTER: Mask =
    mask(&[Mask::SQ_PSN, Mask::MAX_RD, Mask::TIMEOUT, Mask::RETRY, Mask::RNR_RETRY]);
const ONCE_SENDING: [Mask; 5] = [ACCESS_RNR, ACCESS, Mask::QKEY, ACCESS, ACCESS_RNR];

/// Transitions that take attributes. The manual page ibv_modify_qp(3) lists the required ones. Any
/// state may go to RESET or ERROR without attributes. For UD, `path_mtu` and `access` are accepted
/// where RC takes them, since one port has one MTU.
const TABLE: [Row; 11] = [
    Row {
        from: State::Reset,
        to: State::Init,
        must: [ACCESS, ACCESS, Mask::QKEY, ACCESS, ACCESS],
        may: [OPTIONS, NO, ACCESS, NO, NO],
    },
    Row {
        from: State::Init,
        to: State::Init,
        must: [NO; 5],
        may: [ACCESS.union(OPTIONS), ACCESS, Mask::QKEY.union(ACCESS), ACCESS, ACCESS],
    },
    Row {
        from: State::Init,
        to: State::Rtr,
        must: [RESPONDER, CONNECT, NO, CONNECT, RESPONDER],
        may: [ACCESS.union(OPTIONS), ACCESS, Mask::QKEY.union(Mask::MTU), ACCESS, ACCESS],
    },
    Row {
        from: State::Rtr,
        to: State::Rts,
        must: [REQUESTER, Mask::SQ_PSN, Mask::SQ_PSN, REQUESTER, Mask::SQ_PSN.union(Mask::TIMEOUT)],
        may: ONCE_SENDING,
    },
    Row { from: State::Rts, to: State::Rts, must: [NO; 5], may: ONCE_SENDING },
    Row { from: State::Rts, to: State::Sqd, must: [NO; 5], may: [NO; 5] },
    Row {
        from: State::Sqd,
        to: State::Sqd,
        must: [NO; 5],
        may: [
            mask(&[
                ACCESS_RNR,
                Mask::PATH,
                Mask::TIMEOUT,
                Mask::RETRY,
                Mask::RNR_RETRY,
                Mask::MAX_RD,
                Mask::MAX_DEST_RD,
            ]),
            ACCESS.union(Mask::PATH),
            Mask::QKEY,
            mask(&[ACCESS, Mask::PATH, Mask::TIMEOUT, Mask::RETRY, Mask::RNR_RETRY, Mask::MAX_RD]),
            mask(&[ACCESS_RNR, Mask::PATH, Mask::TIMEOUT, Mask::MAX_DEST_RD]),
        ],
    },
    Row { from: State::Sqd, to: State::Rts, must: [NO; 5], may: ONCE_SENDING },
    Row { from: State::Sqe, to: State::Rts, must: [NO; 5], may: [NO, ACCESS, Mask::QKEY, NO, NO] },
    Row { from: State::Reset, to: State::Reset, must: [NO; 5], may: [NO; 5] },
    Row { from: State::Error, to: State::Error, must: [NO; 5], may: [NO; 5] },
];

/// The name of an attribute, as [`name`] has it, from its serialized form.
#[cfg(feature = "serde")]
fn by_name<'de, D: serde::Deserializer<'de>>(source: D) -> Result<&'static str, D::Error> {
    let wanted: String = serde::Deserialize::deserialize(source)?;
    Ok(Mask::all().iter().map(name).find(|known| *known == wanted).unwrap_or("an attribute"))
}

fn name(bit: Mask) -> &'static str {
    match bit {
        Mask::ACCESS => "access",
        Mask::QKEY => "qkey",
        Mask::PATH => "path",
        Mask::MTU => "path_mtu",
        Mask::DEST => "dest_qp",
        Mask::RQ_PSN => "rq_psn",
        Mask::SQ_PSN => "sq_psn",
        Mask::MAX_RD => "max_rd_atomic",
        Mask::MAX_DEST_RD => "max_dest_rd_atomic",
        Mask::MIN_RNR => "min_rnr_timer",
        Mask::TIMEOUT => "timeout",
        Mask::RETRY => "retry_cnt",
        Mask::RNR_RETRY => "rnr_retry",
        Mask::DIALECT => "dialect",
        _ => "congestion",
    }
}

/// May a queue pair of this service in state `from` take `attr`? Returns the state it goes to.
pub(crate) fn check(service: Service, from: State, attr: &QpAttr) -> Result<State, ModifyQpError> {
    attr.check_ranges()?;
    let to = attr.state.unwrap_or(from);
    let given = attr.mask();
    let (must, may) = if matches!(to, State::Reset | State::Error) && from != to {
        (NO, NO)
    } else {
        let unreliable = matches!(service, Service::Uc | Service::Ud);
        let reliable_only = to == State::Sqe || from == State::Sqe && !unreliable;
        let row = TABLE
            .iter()
            .find(|r| r.from == from && r.to == to && !reliable_only)
            .ok_or(ModifyQpError::Transition { from, to })?;
        (row.must[service as usize], row.may[service as usize])
    };
    if let Some(missing) = must.difference(given).iter().next() {
        return Err(ModifyQpError::Missing { from, to, missing: name(missing) });
    }
    if let Some(extra) = given.difference(must.union(may)).iter().next() {
        return Err(ModifyQpError::Extra { from, to, extra: name(extra) });
    }
    Ok(to)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [State; 7] =
        [State::Reset, State::Init, State::Rtr, State::Rts, State::Sqd, State::Sqe, State::Error];

    /// The whole matrix of a service: the answer to each change of state without attributes.
    fn matrix(service: Service) -> String {
        let mut out = String::new();
        for from in ALL {
            for to in ALL {
                let attr = QpAttr { state: Some(to), ..QpAttr::default() };
                let cell = match check(service, from, &attr) {
                    Ok(_) => "yes".into(),
                    Err(ModifyQpError::Missing { missing, .. }) => format!("needs {missing}, …"),
                    Err(_) => "-".into(),
                };
                out += &format!("{from:?} -> {to:?}: {cell}\n");
            }
        }
        out
    }

    #[test]
    fn the_matrix_of_each_service_is_as_reviewed() {
        insta::assert_snapshot!("rc", matrix(Service::Rc));
        insta::assert_snapshot!("uc", matrix(Service::Uc));
        insta::assert_snapshot!("ud", matrix(Service::Ud));
        insta::assert_snapshot!("xrc_send", matrix(Service::XrcSend));
        insta::assert_snapshot!("xrc_receive", matrix(Service::XrcReceive));
    }

    #[test]
    fn an_attribute_too_much_is_named() {
        let attr = QpAttr { sq_psn: Some(Psn::new(1)), ..QpAttr::default() };
        assert_eq!(
            check(Service::Rc, State::Rts, &attr),
            Err(ModifyQpError::Extra { from: State::Rts, to: State::Rts, extra: "sq_psn" })
        );
        let attr = QpAttr { retry_cnt: Some(8), ..QpAttr::default() };
        assert_eq!(check(Service::Rc, State::Rts, &attr), Err(ModifyQpError::Range("retry_cnt")));
    }

    #[test]
    fn a_key_for_queue_pair_1_is_nobodys_own() {
        let to = |qkey| QpAttr { state: Some(State::Init), qkey: Some(qkey), ..QpAttr::default() };
        for qkey in [crate::cm::mad::CM_QKEY, 1 << 31, u32::MAX] {
            let refused = check(Service::Ud, State::Reset, &to(qkey));
            assert_eq!(refused, Err(ModifyQpError::PrivilegedQkey(qkey)));
            let changed = QpAttr { qkey: Some(qkey), ..QpAttr::default() };
            let refused = check(Service::Ud, State::Rts, &changed);
            assert_eq!(refused, Err(ModifyQpError::PrivilegedQkey(qkey)));
        }
        assert_eq!(check(Service::Ud, State::Reset, &to(u32::MAX >> 1)), Ok(State::Init));
    }

    #[test]
    fn the_path_mtu_fits_the_link() {
        assert_eq!(Mtu::fitting(1500), Mtu::B1024);
        assert_eq!(Mtu::fitting(65536), Mtu::B4096);
        assert_eq!(Mtu::fitting(9000), Mtu::B4096);
        assert_eq!((Mtu::fitting(4200), Mtu::fitting(4000)), (Mtu::B4096, Mtu::B2048));
        assert_eq!(Mtu::fitting(100), Mtu::B256);
    }
}
