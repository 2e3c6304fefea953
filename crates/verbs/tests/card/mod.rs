//! A card as a program sees it, for tests that make their queues on it.

use std::ffi::c_uint;
use std::ptr::{self, with_exposed_provenance_mut};

use remora::memory::Buffer;
use remora_verbs::abi::*;
use remora_verbs::ibverbs::{cq, device, mr, open, pd, poll, post, qp, recv};

/// An open device with a domain and a region.
pub(crate) struct Card {
    pub(crate) context: *mut ibv_context,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) memory: Buffer,
    pub(crate) key: u32,
}

impl Card {
    pub(crate) fn open() -> Card {
        // SAFETY: a list ends with null, and is given back once.
        let context = unsafe {
            let list = device::get_device_list(ptr::null_mut());
            let context = open::open_device(*list);
            device::free_device_list(list);
            context
        };
        assert!(!context.is_null());
        let pd = pd::alloc_pd(context);
        let memory = Buffer::new(1 << 16).unwrap();
        let access = IBV_ACCESS_LOCAL_WRITE
            | IBV_ACCESS_REMOTE_WRITE
            | IBV_ACCESS_REMOTE_READ
            | IBV_ACCESS_REMOTE_ATOMIC
            | newer::IBV_ACCESS_FLUSH_GLOBAL;
        let at = with_exposed_provenance_mut(memory.addr() as usize);
        let region = mr::reg_mr(pd, at, memory.len(), access as i32);
        assert!(!region.is_null(), "{}", std::io::Error::last_os_error());
        // SAFETY: it is a valid region.
        let key = unsafe { (*region).lkey };
        Card { context, pd, memory, key }
    }

    pub(crate) fn cq(&self, channel: *mut ibv_comp_channel) -> *mut ibv_cq {
        let cq = cq::create_cq(self.context, 64, ptr::null_mut(), channel, 0);
        assert!(!cq.is_null());
        cq
    }

    pub(crate) fn qp(
        &self,
        qp_type: ibv_qp_type,
        cq: *mut ibv_cq,
        srq: *mut ibv_srq,
    ) -> *mut ibv_qp {
        let mut init = init(qp_type, cq, srq);
        // SAFETY: the attributes live through the call.
        let qp = unsafe { qp::create_qp(self.pd, &mut init) };
        assert!(!qp.is_null(), "{}", std::io::Error::last_os_error());
        assert!(init.cap.max_send_wr >= 8 && init.cap.max_inline_data >= 60);
        qp
    }

    pub(crate) fn word(&self, at: u64) -> u64 {
        let mut bytes = [0; 8];
        self.memory.read_at(at as usize, &mut bytes).unwrap();
        u64::from_ne_bytes(bytes)
    }

    pub(crate) fn sge(&self, at: u64, length: u32) -> ibv_sge {
        ibv_sge { addr: self.memory.addr() + at, length, lkey: self.key }
    }

    /// The address vector of the card itself.
    pub(crate) fn itself(&self) -> ibv_ah_attr {
        let card = pd::find(self.pd).unwrap().context.card;
        let mut attr = ibv_ah_attr::zeroed();
        attr.is_global = 1;
        attr.port_num = 1;
        attr.grh.dgid.raw = card.gid();
        attr.grh.sgid_index = 0;
        attr
    }

    /// Two queue pairs that are connected to each other.
    pub(crate) fn pair(&self, qp_type: ibv_qp_type, cq: *mut ibv_cq) -> [*mut ibv_qp; 2] {
        let pair = [self.qp(qp_type, cq, ptr::null_mut()), self.qp(qp_type, cq, ptr::null_mut())];
        self.connect(pair[0], pair[1]);
        self.connect(pair[1], pair[0]);
        pair
    }

    /// A datagram queue pair that sends and receives.
    pub(crate) fn datagram_qp(&self, cq: *mut ibv_cq) -> *mut ibv_qp {
        let qp = self.qp(IBV_QPT_UD, cq, ptr::null_mut());
        let mut attr = ibv_qp_attr::zeroed();
        (attr.qp_state, attr.port_num, attr.qkey) = (IBV_QPS_INIT, 1, 0x1234);
        modify(qp, &mut attr, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY).unwrap();
        to_state(qp, IBV_QPS_RTR).unwrap();
        attr.qp_state = IBV_QPS_RTS;
        modify(qp, &mut attr, IBV_QP_SQ_PSN).unwrap();
        qp
    }

    pub(crate) fn connect(&self, qp: *mut ibv_qp, peer: *mut ibv_qp) {
        // SAFETY: both are valid queue pairs.
        let (reliable, peer) = unsafe { ((*qp).qp_type != IBV_QPT_UC, (*peer).qp_num) };
        let mut attr = ibv_qp_attr::zeroed();
        attr.port_num = 1;
        attr.qp_access_flags =
            IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
        attr.qp_access_flags |= newer::IBV_ACCESS_FLUSH_GLOBAL;
        attr.path_mtu = IBV_MTU_1024;
        attr.dest_qp_num = peer;
        attr.ah_attr = self.itself();
        (attr.max_rd_atomic, attr.max_dest_rd_atomic) = (4, 4);
        (attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer) = (14, 7, 7, 12);
        attr.qp_state = IBV_QPS_INIT;
        let identity = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
        modify(qp, &mut attr, identity).unwrap();
        attr.qp_state = IBV_QPS_RTR;
        let mut mask = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
        if reliable {
            mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
        }
        modify(qp, &mut attr, mask).unwrap();
        attr.qp_state = IBV_QPS_RTS;
        let mut mask = IBV_QP_SQ_PSN;
        if reliable {
            mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
        }
        modify(qp, &mut attr, mask).unwrap();
    }
}

pub(crate) fn init(qp_type: ibv_qp_type, cq: *mut ibv_cq, srq: *mut ibv_srq) -> ibv_qp_init_attr {
    let mut init = ibv_qp_init_attr::zeroed();
    (init.send_cq, init.recv_cq, init.srq, init.qp_type) = (cq, cq, srq, qp_type);
    init.cap = ibv_qp_cap {
        max_send_wr: 8,
        max_recv_wr: 8,
        max_send_sge: 2,
        max_recv_sge: 2,
        max_inline_data: 60,
    };
    init
}

pub(crate) fn modify(qp: *mut ibv_qp, attr: &mut ibv_qp_attr, mask: c_uint) -> Result<(), i32> {
    // SAFETY: the attributes live through the call.
    match unsafe { qp::modify_qp(qp, attr, (mask | IBV_QP_STATE) as i32) } {
        0 => Ok(()),
        errno => Err(errno),
    }
}

pub(crate) fn to_state(qp: *mut ibv_qp, state: ibv_qp_state) -> Result<(), i32> {
    modify(qp, &mut ibv_qp_attr { qp_state: state, ..ibv_qp_attr::zeroed() }, 0)
}

pub(crate) fn send_wr(wr_id: u64, opcode: ibv_wr_opcode, sges: &mut [ibv_sge]) -> ibv_send_wr {
    let mut wr = ibv_send_wr::zeroed();
    (wr.wr_id, wr.opcode, wr.send_flags) = (wr_id, opcode, IBV_SEND_SIGNALED);
    (wr.sg_list, wr.num_sge) = (sges.as_mut_ptr(), sges.len() as i32);
    wr
}

pub(crate) fn post_send(qp: *mut ibv_qp, wr: &mut ibv_send_wr) -> Result<(), (i32, u64)> {
    let mut bad = ptr::null_mut();
    // SAFETY: the request and what it points to live through the call.
    match unsafe { post::post_send(qp, wr, &mut bad) } {
        0 => Ok(()),
        // SAFETY: the refused request is one of the list.
        errno => Err((errno, unsafe { bad.as_ref().map_or(0, |wr| wr.wr_id) })),
    }
}

pub(crate) fn post_recv(qp: *mut ibv_qp, wr_id: u64, sges: &mut [ibv_sge]) -> i32 {
    let mut wr = ibv_recv_wr {
        wr_id,
        next: ptr::null_mut(),
        sg_list: sges.as_mut_ptr(),
        num_sge: sges.len() as i32,
    };
    let mut bad = ptr::null_mut();
    // SAFETY: the request and what it points to live through the call.
    unsafe { recv::post_recv(qp, &mut wr, &mut bad) }
}

/// Polls until there is a completion, which may be a failure.
pub(crate) fn next(cq: *mut ibv_cq) -> ibv_wc {
    let mut wc = ibv_wc::zeroed();
    // SAFETY: there is room for one.
    while unsafe { poll::poll_cq(cq, 1, &mut wc) } == 0 {
        std::thread::yield_now();
    }
    wc
}

pub(crate) fn write_target(card: &Card, at: u64) -> ibv_send_wr_wr_rdma {
    ibv_send_wr_wr_rdma { remote_addr: card.memory.addr() + at, rkey: card.key }
}

/// Polls until there is a completion, which must be a success.
pub(crate) fn done(cq: *mut ibv_cq) -> ibv_wc {
    let wc = next(cq);
    assert_eq!(wc.status, IBV_WC_SUCCESS, "request {}", wc.wr_id);
    wc
}
