//! Attributes of queue pairs: which transition takes which, and how the card names them.
//!
//! The table is that of the InfiniBand specification ("QP state transition properties"), as
//! `ibv_modify_qp(3)` repeats it. The card checks transitions by a table of its own
//! (`qp/state.rs` of `remora-nic`); this one says which attributes a program must and may name in
//! its mask. The sizes that a queue pair is granted (`ibv_qp_cap`) are in `qp.rs`.

use std::ffi::c_uint;

use remora::nic::qp::{MAX_RD_ATOMIC, Mtu, QpAttr, State};
use remora::nic::{Access, Path, Psn};

use super::{EINVAL, EOPNOTSUPP, Result};
use crate::abi::newer::{IBV_ACCESS_FLUSH_GLOBAL, IBV_ACCESS_FLUSH_PERSISTENT};
use crate::abi::*;

/// The most work requests of a queue.
pub(super) const MAX_WR: u32 = 1 << 15;

/// The services, as columns of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Service {
    Rc,
    Uc,
    Ud,
    XrcSend,
    XrcRecv,
}

impl Service {
    pub(crate) fn of(qp_type: ibv_qp_type) -> Option<Service> {
        Some(match qp_type {
            IBV_QPT_RC => Service::Rc,
            IBV_QPT_UC => Service::Uc,
            IBV_QPT_UD => Service::Ud,
            IBV_QPT_XRC_SEND => Service::XrcSend,
            IBV_QPT_XRC_RECV => Service::XrcRecv,
            _ => return None,
        })
    }
}

/// Attributes by service: RC, UC, UD, XRC send, XRC receive.
type PerService = [c_uint; 5];

/// One transition: the attributes that it needs, and those that it also takes.
struct Row {
    from: ibv_qp_state,
    to: ibv_qp_state,
    must: PerService,
    may: PerService,
}

const NONE: PerService = [0; 5];
const IDENTITY: c_uint = IBV_QP_PKEY_INDEX | IBV_QP_PORT;
const CONNECTED: c_uint = IDENTITY | IBV_QP_ACCESS_FLAGS;
const DATAGRAM: c_uint = IDENTITY | IBV_QP_QKEY;
const PEER: c_uint = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
const ANSWERS: c_uint = IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
const RETRIES: c_uint =
    IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
const CHANGES: c_uint = IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX;
const RUNNING: c_uint =
    IBV_QP_CUR_STATE | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PATH_MIG_STATE;
/// Each half of an XRC connection needs half of the attributes that RC needs. The other half's
/// attributes are accepted and ignored, because perftest gives each half all of them.
const EITHER_HALF: c_uint = ANSWERS | RETRIES;
/// The attributes that a queue pair takes while it sends, in RTS.
const WHILE_RUNNING: PerService = [
    RUNNING | IBV_QP_MIN_RNR_TIMER,
    RUNNING,
    IBV_QP_CUR_STATE | IBV_QP_QKEY,
    RUNNING,
    RUNNING | IBV_QP_MIN_RNR_TIMER | EITHER_HALF,
];
const WHILE_DRAINED: c_uint = IBV_QP_AV | CHANGES | IBV_QP_PATH_MIG_STATE;

const TABLE: [Row; 11] = [
    Row { from: IBV_QPS_RESET, to: IBV_QPS_RESET, must: NONE, may: NONE },
    Row {
        from: IBV_QPS_RESET,
        to: IBV_QPS_INIT,
        must: [CONNECTED, CONNECTED, DATAGRAM, CONNECTED, CONNECTED],
        may: NONE,
    },
    Row {
        from: IBV_QPS_INIT,
        to: IBV_QPS_INIT,
        must: NONE,
        may: [CONNECTED, CONNECTED, DATAGRAM, CONNECTED, CONNECTED],
    },
    Row {
        from: IBV_QPS_INIT,
        to: IBV_QPS_RTR,
        must: [PEER | ANSWERS, PEER, 0, PEER, PEER | ANSWERS],
        may: [CHANGES, CHANGES, IBV_QP_PKEY_INDEX | IBV_QP_QKEY, CHANGES | EITHER_HALF, CHANGES],
    },
    Row {
        from: IBV_QPS_RTR,
        to: IBV_QPS_RTS,
        must: [
            IBV_QP_SQ_PSN | RETRIES,
            IBV_QP_SQ_PSN,
            IBV_QP_SQ_PSN,
            IBV_QP_SQ_PSN | RETRIES,
            IBV_QP_SQ_PSN | IBV_QP_TIMEOUT,
        ],
        may: WHILE_RUNNING,
    },
    Row { from: IBV_QPS_RTS, to: IBV_QPS_RTS, must: NONE, may: WHILE_RUNNING },
    Row { from: IBV_QPS_RTS, to: IBV_QPS_SQD, must: NONE, may: [IBV_QP_EN_SQD_ASYNC_NOTIFY; 5] },
    Row { from: IBV_QPS_SQD, to: IBV_QPS_RTS, must: NONE, may: WHILE_RUNNING },
    Row {
        from: IBV_QPS_SQD,
        to: IBV_QPS_SQD,
        must: NONE,
        may: [
            WHILE_DRAINED | IBV_QP_PORT | RETRIES | ANSWERS,
            WHILE_DRAINED,
            IBV_QP_PKEY_INDEX | IBV_QP_QKEY,
            WHILE_DRAINED | IBV_QP_PORT | RETRIES,
            WHILE_DRAINED | IBV_QP_PORT | IBV_QP_TIMEOUT | ANSWERS,
        ],
    },
    Row {
        from: IBV_QPS_SQE,
        to: IBV_QPS_RTS,
        must: NONE,
        may: [0, IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS, IBV_QP_CUR_STATE | IBV_QP_QKEY, 0, 0],
    },
    Row { from: IBV_QPS_ERR, to: IBV_QPS_ERR, must: NONE, may: NONE },
];

/// Checks that a queue pair in `from` takes the attributes that `mask` names. Returns the state it
/// goes to.
pub(crate) fn check_mask(
    service: Service,
    from: ibv_qp_state,
    attr: &ibv_qp_attr,
    mask: c_uint,
) -> Result<ibv_qp_state> {
    if mask & IBV_QP_CUR_STATE != 0 && attr.cur_qp_state != from {
        return Err(EINVAL);
    }
    let to = if mask & IBV_QP_STATE != 0 { attr.qp_state } else { from };
    let given = mask & !IBV_QP_STATE;
    let (must, may) = if matches!(to, IBV_QPS_RESET | IBV_QPS_ERR) {
        (0, IBV_QP_CUR_STATE)
    } else {
        let reliable = !matches!(service, Service::Uc | Service::Ud);
        let row = TABLE
            .iter()
            .find(|row| row.from == from && row.to == to)
            .filter(|_| from != IBV_QPS_SQE || !reliable)
            .ok_or(EINVAL)?;
        (row.must[service as usize], row.may[service as usize])
    };
    if must & !given != 0 || given & !(must | may) != 0 {
        return Err(EINVAL);
    }
    Ok(to)
}

/// The most READs and atomics at a time that a peer's device may announce: soft-RoCE's limit.
/// Programs such as perftest pass on what the peer's program announces, so this is accepted
/// although the card has fewer outstanding.
const MAX_PEER_RD_ATOMIC: u8 = 128;

/// Checks that the named values are in range, and the path MTU is at most `most`.
pub(crate) fn check_values(attr: &ibv_qp_attr, mask: c_uint, most: Mtu) -> Result<()> {
    let given = |bit: c_uint| mask & bit != 0;
    if given(IBV_QP_ALT_PATH) {
        return Err(EOPNOTSUPP);
    }
    let bad = given(IBV_QP_PORT) && attr.port_num != 1
        || given(IBV_QP_PKEY_INDEX) && attr.pkey_index != 0
        || given(IBV_QP_PATH_MTU) && mtu(attr.path_mtu).is_none_or(|mtu| mtu > most)
        || given(IBV_QP_TIMEOUT) && attr.timeout > 31
        || given(IBV_QP_RETRY_CNT) && attr.retry_cnt > 7
        || given(IBV_QP_RNR_RETRY) && attr.rnr_retry > 7
        || given(IBV_QP_MIN_RNR_TIMER) && attr.min_rnr_timer > 31
        || given(IBV_QP_MAX_QP_RD_ATOMIC) && attr.max_rd_atomic > MAX_PEER_RD_ATOMIC
        || given(IBV_QP_MAX_DEST_RD_ATOMIC) && attr.max_dest_rd_atomic > MAX_RD_ATOMIC
        || given(IBV_QP_DEST_QPN) && attr.dest_qp_num > 0xFF_FFFF
        || given(IBV_QP_PATH_MIG_STATE) && attr.path_mig_state != IBV_MIG_MIGRATED;
    if bad { Err(EINVAL) } else { Ok(()) }
}

/// The attributes in the card's form; `path` is that of `ah_attr`.
pub(crate) fn to_card(
    service: Service,
    (from, to): (ibv_qp_state, ibv_qp_state),
    attr: &ibv_qp_attr,
    mask: c_uint,
    (path, port_mtu): (Option<Path>, Mtu),
) -> QpAttr {
    let given = |bit: c_uint| mask & bit != 0;
    let when = |bit: c_uint, value: u8| given(bit).then_some(value);
    let mut card = QpAttr {
        state: given(IBV_QP_STATE).then(|| state(to)),
        access: given(IBV_QP_ACCESS_FLAGS).then(|| access(attr.qp_access_flags)),
        qkey: given(IBV_QP_QKEY).then_some(attr.qkey),
        path,
        path_mtu: if given(IBV_QP_PATH_MTU) { mtu(attr.path_mtu) } else { None },
        dest_qp: given(IBV_QP_DEST_QPN).then_some(attr.dest_qp_num),
        rq_psn: given(IBV_QP_RQ_PSN).then(|| Psn::new(attr.rq_psn)),
        sq_psn: given(IBV_QP_SQ_PSN).then(|| Psn::new(attr.sq_psn)),
        max_rd_atomic: when(IBV_QP_MAX_QP_RD_ATOMIC, attr.max_rd_atomic.min(MAX_RD_ATOMIC)),
        max_dest_rd_atomic: when(IBV_QP_MAX_DEST_RD_ATOMIC, attr.max_dest_rd_atomic),
        min_rnr_timer: when(IBV_QP_MIN_RNR_TIMER, attr.min_rnr_timer),
        timeout: when(IBV_QP_TIMEOUT, attr.timeout),
        retry_cnt: when(IBV_QP_RETRY_CNT, attr.retry_cnt),
        rnr_retry: when(IBV_QP_RNR_RETRY, attr.rnr_retry),
        ..QpAttr::default()
    };
    if service == Service::XrcSend {
        (card.max_dest_rd_atomic, card.min_rnr_timer) = (None, None);
    }
    if service == Service::XrcRecv {
        (card.max_rd_atomic, card.retry_cnt, card.rnr_retry) = (None, None, None);
    }
    // A datagram queue pair has no path of its own: its path MTU is the port's.
    if service == Service::Ud && from == IBV_QPS_INIT && to == IBV_QPS_RTR {
        card.path_mtu = Some(port_mtu);
    }
    card
}

/// Stores the attributes that were set, for `ibv_query_qp`.
pub(crate) fn remember(kept: &mut ibv_qp_attr, new: &ibv_qp_attr, mask: c_uint) {
    macro_rules! keep {
        ($($bit:ident: $($field:ident)*;)*) => {
            $(if mask & $bit != 0 { $(kept.$field = new.$field;)* })*
        };
    }
    keep! {
        IBV_QP_EN_SQD_ASYNC_NOTIFY: en_sqd_async_notify;
        IBV_QP_ACCESS_FLAGS: qp_access_flags;
        IBV_QP_PKEY_INDEX: pkey_index;
        IBV_QP_PORT: port_num;
        IBV_QP_QKEY: qkey;
        IBV_QP_AV: ah_attr;
        IBV_QP_PATH_MTU: path_mtu;
        IBV_QP_TIMEOUT: timeout;
        IBV_QP_RETRY_CNT: retry_cnt;
        IBV_QP_RNR_RETRY: rnr_retry;
        IBV_QP_RQ_PSN: rq_psn;
        IBV_QP_MAX_QP_RD_ATOMIC: max_rd_atomic;
        IBV_QP_MIN_RNR_TIMER: min_rnr_timer;
        IBV_QP_SQ_PSN: sq_psn;
        IBV_QP_MAX_DEST_RD_ATOMIC: max_dest_rd_atomic;
        IBV_QP_DEST_QPN: dest_qp_num;
    }
    kept.max_rd_atomic = kept.max_rd_atomic.min(MAX_RD_ATOMIC);
}

/// The card's name of a state; the mask check has refused all others.
fn state(state: ibv_qp_state) -> State {
    match state {
        IBV_QPS_RESET => State::Reset,
        IBV_QPS_INIT => State::Init,
        IBV_QPS_RTR => State::Rtr,
        IBV_QPS_RTS => State::Rts,
        IBV_QPS_SQD => State::Sqd,
        IBV_QPS_SQE => State::Sqe,
        _ => State::Error,
    }
}

/// The verbs' name of a state.
pub(crate) fn state_of(state: State) -> ibv_qp_state {
    match state {
        State::Reset => IBV_QPS_RESET,
        State::Init => IBV_QPS_INIT,
        State::Rtr => IBV_QPS_RTR,
        State::Rts => IBV_QPS_RTS,
        State::Sqd => IBV_QPS_SQD,
        State::Sqe => IBV_QPS_SQE,
        State::Error => IBV_QPS_ERR,
    }
}

fn mtu(mtu: ibv_mtu) -> Option<Mtu> {
    Mtu::from_code(u8::try_from(mtu).ok()?)
}

fn access(flags: c_uint) -> Access {
    [
        (IBV_ACCESS_LOCAL_WRITE, Access::LOCAL_WRITE),
        (IBV_ACCESS_REMOTE_WRITE, Access::REMOTE_WRITE),
        (IBV_ACCESS_REMOTE_READ, Access::REMOTE_READ),
        (IBV_ACCESS_REMOTE_ATOMIC, Access::REMOTE_ATOMIC),
        (IBV_ACCESS_FLUSH_GLOBAL, Access::FLUSH_GLOBAL),
        // No region has it, but programs ask for both.
        (IBV_ACCESS_FLUSH_PERSISTENT, Access::FLUSH_PERSISTENT),
    ]
    .into_iter()
    .filter(|(flag, _)| flags & flag != 0)
    .map(|(_, access)| access)
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(
        qp_type: ibv_qp_type,
        from: ibv_qp_state,
        to: ibv_qp_state,
        mask: c_uint,
    ) -> Result<ibv_qp_state> {
        let attr = ibv_qp_attr { qp_state: to, cur_qp_state: from, ..ibv_qp_attr::zeroed() };
        check_mask(Service::of(qp_type).unwrap(), from, &attr, mask | IBV_QP_STATE)
    }

    #[test]
    fn the_manuals_required_masks_are_enough_and_no_attribute_may_be_missing() {
        let rc = [
            (IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
            (
                IBV_QPS_INIT,
                IBV_QPS_RTR,
                IBV_QP_AV
                    | IBV_QP_PATH_MTU
                    | IBV_QP_DEST_QPN
                    | IBV_QP_RQ_PSN
                    | IBV_QP_MAX_DEST_RD_ATOMIC
                    | IBV_QP_MIN_RNR_TIMER,
            ),
            (
                IBV_QPS_RTR,
                IBV_QPS_RTS,
                IBV_QP_SQ_PSN
                    | IBV_QP_MAX_QP_RD_ATOMIC
                    | IBV_QP_RETRY_CNT
                    | IBV_QP_RNR_RETRY
                    | IBV_QP_TIMEOUT,
            ),
        ];
        for (from, to, mask) in rc {
            assert_eq!(check(IBV_QPT_RC, from, to, mask), Ok(to));
            for bit in (0..32).map(|n| 1 << n).filter(|bit| mask & bit != 0) {
                assert_eq!(check(IBV_QPT_RC, from, to, mask & !bit), Err(EINVAL));
            }
        }
        let ud = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
        assert_eq!(check(IBV_QPT_UD, IBV_QPS_RESET, IBV_QPS_INIT, ud), Ok(IBV_QPS_INIT));
        assert_eq!(check(IBV_QPT_UD, IBV_QPS_INIT, IBV_QPS_RTR, 0), Ok(IBV_QPS_RTR));
        assert_eq!(check(IBV_QPT_UD, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QP_SQ_PSN), Ok(IBV_QPS_RTS));
    }

    #[test]
    fn an_undefined_transition_or_an_extra_attribute_is_refused() {
        let identity = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
        let refused = Err(EINVAL);
        assert_eq!(check(IBV_QPT_RC, IBV_QPS_RESET, IBV_QPS_RTR, identity), refused);
        assert_eq!(check(IBV_QPT_RC, IBV_QPS_RESET, IBV_QPS_INIT, identity | IBV_QP_QKEY), refused);
        assert_eq!(check(IBV_QPT_UD, IBV_QPS_RESET, IBV_QPS_INIT, identity), refused);
        assert_eq!(check(IBV_QPT_RC, IBV_QPS_SQE, IBV_QPS_RTS, 0), refused);
        assert_eq!(check(IBV_QPT_UC, IBV_QPS_SQE, IBV_QPS_RTS, 0), Ok(IBV_QPS_RTS));
        assert_eq!(check(IBV_QPT_RC, IBV_QPS_RTS, 99, 0), refused);
        assert_eq!(check(IBV_QPT_RC, IBV_QPS_RTS, IBV_QPS_ERR, 0), Ok(IBV_QPS_ERR));
        assert_eq!(check(IBV_QPT_RC, IBV_QPS_ERR, IBV_QPS_RESET, 0), Ok(IBV_QPS_RESET));
    }

    #[test]
    fn the_peers_limit_of_reads_is_accepted_and_this_cards_limit_is_kept() {
        // perftest passes this on from a program on soft-RoCE.
        let mask = IBV_QP_MAX_QP_RD_ATOMIC;
        let most = Mtu::B4096;
        let mut attr = ibv_qp_attr { max_rd_atomic: 128, ..ibv_qp_attr::zeroed() };
        assert_eq!(check_values(&attr, mask, most), Ok(()));
        let states = (IBV_QPS_RTR, IBV_QPS_RTS);
        let card = to_card(Service::Rc, states, &attr, mask, (None, most));
        assert_eq!(card.max_rd_atomic, Some(MAX_RD_ATOMIC));
        let mut kept = ibv_qp_attr::zeroed();
        remember(&mut kept, &attr, mask);
        assert_eq!(kept.max_rd_atomic, MAX_RD_ATOMIC);
        attr.max_rd_atomic = 129;
        assert_eq!(check_values(&attr, mask, most), Err(EINVAL));
        // A value that this side promises to answer must be within its limit.
        attr.max_dest_rd_atomic = MAX_RD_ATOMIC + 1;
        assert_eq!(check_values(&attr, IBV_QP_MAX_DEST_RD_ATOMIC, most), Err(EINVAL));
    }
}
