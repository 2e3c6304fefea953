//! Queues through the functions that programs call, in one process: two queue pairs of one card
//! that are connected to each other.

use std::collections::HashSet;
use std::ffi::c_uint;
use std::ptr::{self, with_exposed_provenance_mut};
use std::sync::Mutex;

use remora::memory::Buffer;
use remora::nic::{Access, MrInit, PageTable};
use remora_verbs::abi::*;
use remora_verbs::ibverbs::{
    ah, async_event, channel, cq, cq_ex, device, open, pd, poll, post, qp, recv, srq, xrc,
};

/// An open device with a domain and a region.
struct Card {
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    memory: Buffer,
    key: u32,
}

impl Card {
    fn open() -> Card {
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
        let found = pd::find(pd).unwrap();
        let mut card = found.context.card.lock();
        let init = MrInit {
            iova: memory.addr(),
            len: memory.len() as u64,
            access: Access::all(),
            pages: PageTable::contiguous(21, memory.addr(), memory.len() as u64),
        };
        let key = card.nic().reg_mr(found.pd, init).unwrap();
        drop(card);
        Card { context, pd, memory, key }
    }

    fn cq(&self, channel: *mut ibv_comp_channel) -> *mut ibv_cq {
        let cq = cq::create_cq(self.context, 64, ptr::null_mut(), channel, 0);
        assert!(!cq.is_null());
        cq
    }

    fn qp(&self, qp_type: ibv_qp_type, cq: *mut ibv_cq, srq: *mut ibv_srq) -> *mut ibv_qp {
        let mut init = init(qp_type, cq, srq);
        // SAFETY: the attributes live through the call.
        let qp = unsafe { qp::create_qp(self.pd, &mut init) };
        assert!(!qp.is_null(), "{}", std::io::Error::last_os_error());
        assert!(init.cap.max_send_wr >= 8 && init.cap.max_inline_data >= 60);
        qp
    }

    fn word(&self, at: u64) -> u64 {
        let mut bytes = [0; 8];
        self.memory.read_at(at as usize, &mut bytes).unwrap();
        u64::from_ne_bytes(bytes)
    }

    fn sge(&self, at: u64, length: u32) -> ibv_sge {
        ibv_sge { addr: self.memory.addr() + at, length, lkey: self.key }
    }

    /// The address vector of the card itself.
    fn itself(&self) -> ibv_ah_attr {
        let card = pd::find(self.pd).unwrap().context.card;
        let mut attr = ibv_ah_attr::zeroed();
        attr.is_global = 1;
        attr.port_num = 1;
        attr.grh.dgid.raw = card.gid();
        attr.grh.sgid_index = 0;
        attr
    }

    /// Two queue pairs that are connected to each other.
    fn pair(&self, qp_type: ibv_qp_type, cq: *mut ibv_cq) -> [*mut ibv_qp; 2] {
        let pair = [self.qp(qp_type, cq, ptr::null_mut()), self.qp(qp_type, cq, ptr::null_mut())];
        self.connect(pair[0], pair[1]);
        self.connect(pair[1], pair[0]);
        pair
    }

    fn connect(&self, qp: *mut ibv_qp, peer: *mut ibv_qp) {
        // SAFETY: both are valid queue pairs.
        let (reliable, peer) = unsafe { ((*qp).qp_type != IBV_QPT_UC, (*peer).qp_num) };
        let mut attr = ibv_qp_attr::zeroed();
        attr.port_num = 1;
        attr.qp_access_flags =
            IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
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

fn init(qp_type: ibv_qp_type, cq: *mut ibv_cq, srq: *mut ibv_srq) -> ibv_qp_init_attr {
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

fn modify(qp: *mut ibv_qp, attr: &mut ibv_qp_attr, mask: c_uint) -> Result<(), i32> {
    // SAFETY: the attributes live through the call.
    match unsafe { qp::modify_qp(qp, attr, (mask | IBV_QP_STATE) as i32) } {
        0 => Ok(()),
        errno => Err(errno),
    }
}

fn to_state(qp: *mut ibv_qp, state: ibv_qp_state) -> Result<(), i32> {
    modify(qp, &mut ibv_qp_attr { qp_state: state, ..ibv_qp_attr::zeroed() }, 0)
}

fn send_wr(wr_id: u64, opcode: ibv_wr_opcode, sges: &mut [ibv_sge]) -> ibv_send_wr {
    let mut wr = ibv_send_wr::zeroed();
    (wr.wr_id, wr.opcode, wr.send_flags) = (wr_id, opcode, IBV_SEND_SIGNALED);
    (wr.sg_list, wr.num_sge) = (sges.as_mut_ptr(), sges.len() as i32);
    wr
}

fn post_send(qp: *mut ibv_qp, wr: &mut ibv_send_wr) -> Result<(), (i32, u64)> {
    let mut bad = ptr::null_mut();
    // SAFETY: the request and what it points to live through the call.
    match unsafe { post::post_send(qp, wr, &mut bad) } {
        0 => Ok(()),
        // SAFETY: the refused request is one of the list.
        errno => Err((errno, unsafe { bad.as_ref().map_or(0, |wr| wr.wr_id) })),
    }
}

fn post_recv(qp: *mut ibv_qp, wr_id: u64, sges: &mut [ibv_sge]) -> i32 {
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

/// Polls until there is a completion.
fn next(cq: *mut ibv_cq) -> ibv_wc {
    let mut wc = ibv_wc::zeroed();
    // SAFETY: there is room for one.
    while unsafe { poll::poll_cq(cq, 1, &mut wc) } == 0 {
        std::thread::yield_now();
    }
    wc
}

#[test]
fn messages_of_each_kind_arrive() {
    let card = Card::open();
    let cq = card.cq(ptr::null_mut());
    let [a, b] = card.pair(IBV_QPT_RC, cq);
    card.memory.write_at(0, b"hello, world").unwrap();
    assert_eq!(post_recv(b, 7, &mut [card.sge(4096, 64)]), 0);
    let mut sges = [card.sge(0, 7), card.sge(7, 5)];
    let mut wr = send_wr(1, IBV_WR_SEND_WITH_IMM, &mut sges);
    wr.imm.imm_data = 0x0102_0304_u32.to_be();
    post_send(a, &mut wr).unwrap();
    let (x, y) = (next(cq), next(cq));
    let (sent, got) = if x.opcode & IBV_WC_RECV == 0 { (x, y) } else { (y, x) };
    // SAFETY: both are valid queue pairs.
    let (a_num, b_num) = unsafe { ((*a).qp_num, (*b).qp_num) };
    assert_eq!((sent.wr_id, sent.status, sent.opcode), (1, IBV_WC_SUCCESS, IBV_WC_SEND));
    assert_eq!((sent.qp_num, got.qp_num), (a_num, b_num));
    assert_eq!((got.wr_id, got.status, got.byte_len), (7, IBV_WC_SUCCESS, 12));
    assert_eq!(got.wc_flags, IBV_WC_WITH_IMM);
    // SAFETY: the flags say that it holds immediate data.
    assert_eq!(unsafe { got.imm.imm_data }, 0x0102_0304_u32.to_be());
    let mut bytes = [0; 12];
    card.memory.read_at(4096, &mut bytes).unwrap();
    assert_eq!(&bytes, b"hello, world");

    // A list: an inline write, a read of its bytes, an atomic.
    let inline = *b"inline";
    let mut inline = [ibv_sge { addr: inline.as_ptr() as u64, length: 6, lkey: 0 }];
    let mut write = send_wr(2, IBV_WR_RDMA_WRITE, &mut inline);
    write.send_flags = IBV_SEND_INLINE;
    write.wr.rdma = ibv_send_wr_wr_rdma { remote_addr: card.memory.addr() + 512, rkey: card.key };
    let mut to = [card.sge(1024, 6)];
    let mut read = send_wr(3, IBV_WR_RDMA_READ, &mut to);
    read.wr.rdma = write_target(&card, 512);
    let mut result = [card.sge(2048, 8)];
    let mut add = send_wr(4, IBV_WR_ATOMIC_FETCH_AND_ADD, &mut result);
    add.wr.atomic = ibv_send_wr_wr_atomic {
        remote_addr: card.memory.addr() + 2056,
        compare_add: 5,
        swap: 0,
        rkey: card.key,
    };
    card.memory.store_u64(2056, 37).unwrap();
    read.next = &mut add;
    write.next = &mut read;
    post_send(a, &mut write).unwrap();
    let (x, y) = (next(cq), next(cq));
    assert_eq!((x.wr_id, x.opcode, x.status), (3, IBV_WC_RDMA_READ, 0));
    assert_eq!((y.wr_id, y.opcode, y.status), (4, IBV_WC_FETCH_ADD, 0));
    let mut bytes = [0; 6];
    card.memory.read_at(1024, &mut bytes).unwrap();
    assert_eq!(&bytes, b"inline");
    assert_eq!((card.memory.load_u64(2048), card.memory.load_u64(2056)), (Ok(37), Ok(42)));
    assert_eq!((qp::destroy_qp(a), qp::destroy_qp(b), cq::destroy_cq(cq)), (0, 0, 0));
}

/// A peer whose last message was received and answered must get the acknowledge, even if the queue
/// pair is destroyed at once: an acknowledge that was held back behind the answer leaves before it.
#[test]
fn received_messages_are_acknowledged_before_the_queue_pair_is_destroyed() {
    let card = Card::open();
    let (ours, theirs) = (card.cq(ptr::null_mut()), card.cq(ptr::null_mut()));
    for round in 0..20 {
        let [a, b] = [card.qp(IBV_QPT_RC, ours, ptr::null_mut()), {
            card.qp(IBV_QPT_RC, theirs, ptr::null_mut())
        }];
        card.connect(a, b);
        card.connect(b, a);
        // Acknowledges are held back only while the program polls. (The answer of the last round
        // may have been acknowledged before its queue pair was destroyed.)
        let start = std::time::Instant::now();
        let mut wc = ibv_wc { wr_id: 4, ..ibv_wc::zeroed() };
        while start.elapsed().as_millis() < 5 {
            // SAFETY: there is room for one.
            assert!(unsafe { poll::poll_cq(theirs, 1, &mut wc) } <= 1 && wc.wr_id == 4);
        }
        assert_eq!(post_recv(a, 1, &mut [card.sge(4096, 64)]), 0);
        assert_eq!(post_recv(b, 2, &mut [card.sge(8192, 64)]), 0);
        post_send(a, &mut send_wr(3, IBV_WR_SEND, &mut [card.sge(0, 8)])).unwrap();
        assert_eq!((next(theirs).wr_id, round), (2, round));
        post_send(b, &mut send_wr(4, IBV_WR_SEND, &mut [card.sge(0, 8)])).unwrap();
        assert_eq!(qp::destroy_qp(b), 0);
        for _ in 0..2 {
            let wc = next(ours);
            assert_eq!(wc.status, IBV_WC_SUCCESS, "round {round}, request {}", wc.wr_id);
        }
        assert_eq!(qp::destroy_qp(a), 0);
    }
    assert_eq!((cq::destroy_cq(ours), cq::destroy_cq(theirs)), (0, 0));
}

fn write_target(card: &Card, at: u64) -> ibv_send_wr_wr_rdma {
    ibv_send_wr_wr_rdma { remote_addr: card.memory.addr() + at, rkey: card.key }
}

#[test]
fn a_refused_request_is_reported_through_bad_wr() {
    let card = Card::open();
    let cq = card.cq(ptr::null_mut());
    let fresh = card.qp(IBV_QPT_RC, cq, ptr::null_mut());
    let mut sges = [card.sge(0, 8), card.sge(0, 8), card.sge(0, 8)];
    let einval = |wr_id| Err((libc::EINVAL, wr_id));
    assert_eq!(post_send(fresh, &mut send_wr(1, IBV_WR_SEND, &mut sges[..1])), einval(1));
    assert_eq!(post_recv(fresh, 1, &mut sges[..1]), libc::EINVAL, "in RESET");
    let [a, b] = card.pair(IBV_QPT_RC, cq);
    assert_eq!(post_send(a, &mut send_wr(2, IBV_WR_SEND, &mut sges)), einval(2));
    assert_eq!(post_send(a, &mut send_wr(3, IBV_WR_TSO, &mut sges[..1])), einval(3));
    assert_eq!(post_recv(a, 1, &mut sges), libc::EINVAL);
    let mut long = send_wr(4, IBV_WR_SEND, &mut sges[..1]);
    long.send_flags |= IBV_SEND_INLINE;
    // SAFETY: the list has one entry.
    unsafe { (*long.sg_list).length = 5000 };
    assert_eq!(post_send(a, &mut long), einval(4));
    for wr_id in 0..8 {
        assert_eq!(post_recv(b, wr_id, &mut [card.sge(0, 8)]), 0);
    }
    assert_eq!(post_recv(b, 8, &mut [card.sge(0, 8)]), libc::ENOMEM);
    let uc = card.pair(IBV_QPT_UC, cq);
    let mut one = [card.sge(0, 8)];
    assert_eq!(post_send(uc[0], &mut send_wr(5, IBV_WR_RDMA_READ, &mut one)), einval(5));
    // Requests of a list before the bad one are posted.
    let mut bad = send_wr(12, IBV_WR_BIND_MW + 100, &mut []);
    let mut good = send_wr(11, IBV_WR_SEND, &mut one);
    good.next = &mut bad;
    assert_eq!(post_send(a, &mut good), einval(12));
    let (x, y) = (next(cq), next(cq));
    assert_eq!(x.wr_id.min(y.wr_id), 0);
    assert_eq!(x.wr_id.max(y.wr_id), 11);
}

#[test]
fn an_error_flushes_all_that_is_outstanding() {
    let card = Card::open();
    let cq = card.cq(ptr::null_mut());
    let [a, b] = card.pair(IBV_QPT_RC, cq);
    for wr_id in 0..3 {
        assert_eq!(post_recv(a, wr_id, &mut [card.sge(0, 8)]), 0);
    }
    to_state(a, IBV_QPS_ERR).unwrap();
    // SAFETY: it is a valid queue pair.
    assert_eq!(unsafe { (*a).state }, IBV_QPS_ERR);
    for wr_id in 0..3 {
        let wc = next(cq);
        assert_eq!((wc.wr_id, wc.status), (wr_id, IBV_WC_WR_FLUSH_ERR));
        assert_ne!(wc.vendor_err, 0);
    }
    // Requests posted from here on are flushed too.
    assert_eq!(post_recv(a, 9, &mut [card.sge(0, 8)]), 0);
    assert_eq!(next(cq).wr_id, 9);
    post_send(a, &mut send_wr(10, IBV_WR_SEND, &mut [card.sge(0, 8)])).unwrap();
    let wc = next(cq);
    assert_eq!((wc.wr_id, wc.status), (10, IBV_WC_WR_FLUSH_ERR));
    to_state(a, IBV_QPS_RESET).unwrap();
    let mut attr = ibv_qp_attr::zeroed();
    let mut init = ibv_qp_init_attr::zeroed();
    // SAFETY: both can be written.
    assert_eq!(unsafe { qp::query_qp(b, &mut attr, 0, &mut init) }, 0);
    assert_eq!((attr.qp_state, attr.path_mtu, attr.timeout), (IBV_QPS_RTS, IBV_MTU_1024, 14));
    // SAFETY: it is a valid queue pair.
    assert_eq!(attr.dest_qp_num, unsafe { (*a).qp_num });
    assert_eq!((init.send_cq, init.qp_type, init.sq_sig_all), (cq, IBV_QPT_RC, 0));
    assert_eq!(to_state(b, IBV_QPS_INIT), Err(libc::EINVAL));
}

#[test]
fn a_channel_gets_one_event_for_each_time_a_queue_is_armed() {
    let card = Card::open();
    let channel = channel::create_comp_channel(card.context);
    let cq = card.cq(channel);
    assert_eq!(channel::destroy_comp_channel(channel), libc::EBUSY);
    let [a, b] = card.pair(IBV_QPT_RC, cq);
    // SAFETY: the channel and its descriptor are valid.
    unsafe { assert_eq!(libc::fcntl((*channel).fd, libc::F_SETFL, libc::O_NONBLOCK), 0) };
    let (mut told, mut told_context) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: both can be written; the queue is valid.
    unsafe {
        assert_eq!(channel::get_cq_event(channel, &mut told, &mut told_context), -1);
        assert_eq!(cq::req_notify_cq(cq, 0), 0);
    }
    let mut wr = send_wr(1, IBV_WR_RDMA_WRITE, &mut []);
    wr.wr.rdma = write_target(&card, 0);
    post_send(a, &mut wr).unwrap();
    let mut poll =
        // SAFETY: the channel is valid.
        libc::pollfd { fd: unsafe { (*channel).fd }, events: libc::POLLIN, revents: 0 };
    // SAFETY: as above.
    unsafe {
        assert_eq!(libc::poll(&mut poll, 1, -1), 1);
        assert_eq!(channel::get_cq_event(channel, &mut told, &mut told_context), 0);
        assert_eq!(told, cq);
        assert_eq!(channel::get_cq_event(channel, &mut told, &mut told_context), -1);
    }
    assert_eq!(next(cq).wr_id, 1);
    // Moderated, the queue reports two completions with one event.
    let moderate = ibv_moderate_cq { cq_count: 2, cq_period: 0 };
    let mut attr = ibv_modify_cq_attr { attr_mask: IBV_CQ_ATTR_MODERATE, moderate };
    // SAFETY: the attributes can be read; the queue is valid.
    unsafe { assert_eq!((cq::modify_cq(cq, &mut attr), cq::req_notify_cq(cq, 0)), (0, 0)) };
    for ready in [0, 1] {
        post_send(a, &mut wr).unwrap();
        assert_eq!(next(cq).wr_id, 1);
        // SAFETY: as above.
        assert_eq!(unsafe { libc::poll(&mut poll, 1, -ready) }, ready);
    }
    // SAFETY: as above.
    assert_eq!(unsafe { channel::get_cq_event(channel, &mut told, &mut told_context) }, 0);
    assert_eq!(cq::destroy_cq(cq), libc::EBUSY);
    assert_eq!((qp::destroy_qp(a), qp::destroy_qp(b)), (0, 0));
    // Destroying the queue waits for the acknowledge.
    let handle = cq as usize;
    let destroyer = std::thread::spawn(move || cq::destroy_cq(handle as *mut ibv_cq));
    channel::ack_cq_events(cq, 2);
    assert_eq!(destroyer.join().unwrap(), 0);
    assert_eq!(cq::destroy_cq(cq), libc::EINVAL, "it is gone");
    // SAFETY: it was once a completion queue.
    assert!(unsafe { poll::poll_cq(cq, 1, &mut ibv_wc::zeroed()) } < 0);
    assert_eq!(channel::destroy_comp_channel(channel), 0);
}

#[test]
fn events_go_to_the_context_that_made_the_object() {
    let card = Card::open();
    let other = Card::open();
    let cq = card.cq(ptr::null_mut());
    let mut init = ibv_srq_init_attr::zeroed();
    init.attr = ibv_srq_attr { max_wr: 5, max_sge: 1, srq_limit: 0 };
    // SAFETY: the attributes live through the call.
    let srq = unsafe { srq::create_srq(card.pd, &mut init) };
    assert_eq!((init.attr.max_wr, init.attr.max_sge), (8, 1));
    let [a, _b] = card.pair(IBV_QPT_RC, cq);
    let taker = card.qp(IBV_QPT_RC, cq, srq);
    card.connect(taker, a);
    let sender = card.qp(IBV_QPT_RC, cq, ptr::null_mut());
    card.connect(sender, taker);
    to_state(taker, IBV_QPS_ERR).unwrap();
    let mut event = ibv_async_event::zeroed();
    // SAFETY: the event can be written; its type names the element; the descriptors are valid.
    unsafe {
        assert_eq!(async_event::get_async_event(card.context, &mut event), 0);
        assert_eq!(event.event_type, IBV_EVENT_QP_LAST_WQE_REACHED);
        assert_eq!(event.element.qp, taker);
        for context in [card.context, other.context] {
            assert_eq!(libc::fcntl((*context).async_fd, libc::F_SETFL, libc::O_NONBLOCK), 0);
            let mut none = ibv_async_event::zeroed();
            assert_eq!(async_event::get_async_event(context, &mut none), -1);
        }
        assert_eq!(srq::destroy_srq(srq), libc::EBUSY);
        async_event::ack_async_event(&mut event);
    }
    assert_eq!(qp::destroy_qp(taker), 0);
    let mut attr = ibv_srq_attr { max_wr: 100, max_sge: 0, srq_limit: 3 };
    // SAFETY: the attributes can be read and written.
    unsafe {
        let mask = IBV_SRQ_LIMIT | IBV_SRQ_MAX_WR;
        assert_eq!(srq::modify_srq(srq, &mut attr, mask as i32), 0);
        assert_eq!(srq::query_srq(srq, &mut attr), 0);
    }
    assert_eq!((attr.max_wr, attr.srq_limit), (128, 3));
    assert_eq!(srq::destroy_srq(srq), 0);
}

#[test]
fn a_batch_is_posted_whole_or_not_at_all() {
    let card = Card::open();
    let cq = card.cq(ptr::null_mut());
    let mut attr = ibv_qp_init_attr_ex::zeroed();
    let plain = init(IBV_QPT_RC, cq, ptr::null_mut());
    (attr.send_cq, attr.recv_cq, attr.cap) = (cq, cq, plain.cap);
    (attr.qp_type, attr.pd) = (IBV_QPT_RC, card.pd);
    attr.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    attr.send_ops_flags = (IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_READ).into();
    // SAFETY: the attributes live through the call.
    let a = unsafe { qp::create_qp_ex(card.context, &mut attr) };
    let b = card.qp(IBV_QPT_RC, cq, ptr::null_mut());
    card.connect(a, b);
    card.connect(b, a);
    assert!(qp::qp_to_qp_ex(b).is_null());
    let ex = qp::qp_to_qp_ex(a);
    let here = card.memory.addr();
    let write = |text: &[u8], wr_id, at| {
        // SAFETY: the queue pair is valid and has these functions.
        unsafe {
            (*ex).wr_id = wr_id;
            (*ex).wr_flags = IBV_SEND_SIGNALED;
            (*ex).wr_rdma_write.unwrap()(ex, card.key, here + at);
            (*ex).wr_set_inline_data.unwrap()(ex, text.as_ptr() as *mut _, text.len());
        }
    };
    // SAFETY: as above.
    unsafe {
        assert!((*ex).wr_send.is_none());
        (*ex).wr_start.unwrap()(ex);
        write(b"one", 1, 0);
        write(b"two", 2, 3);
        assert_eq!((*ex).wr_complete.unwrap()(ex), 0);
        (*ex).wr_start.unwrap()(ex);
        write(b"not", 3, 0);
        (*ex).wr_abort.unwrap()(ex);
        (*ex).wr_start.unwrap()(ex);
        for _ in 0..9 {
            write(b"not", 4, 0);
        }
        assert_eq!((*ex).wr_complete.unwrap()(ex), libc::ENOMEM);
        (*ex).wr_start.unwrap()(ex);
        write(b"not", 5, 0);
        write(&[0; 200], 6, 0);
        assert_eq!((*ex).wr_complete.unwrap()(ex), libc::EINVAL);
    }
    assert_eq!((next(cq).wr_id, next(cq).wr_id), (1, 2));
    let mut bytes = [0; 6];
    card.memory.read_at(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"onetwo");
    attr.send_ops_flags = IBV_QP_EX_WITH_TSO.into();
    // SAFETY: the attributes live through the call.
    assert!(unsafe { qp::create_qp_ex(card.context, &mut attr) }.is_null());
}

#[test]
fn an_extended_queue_is_read_one_by_one() {
    let card = Card::open();
    let mut attr = ibv_cq_init_attr_ex::zeroed();
    attr.cqe = 10;
    attr.wc_flags = u64::from(
        IBV_WC_STANDARD_FLAGS
            | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP
            | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK,
    );
    // SAFETY: the attributes live through the call.
    let ex = unsafe { cq_ex::create_cq_ex(card.context, &mut attr) };
    let cq: *mut ibv_cq = ex.cast();
    // SAFETY: it is a valid queue.
    assert_eq!(unsafe { (*cq).cqe }, 16);
    let [a, b] = card.pair(IBV_QPT_RC, cq);
    for wr_id in 1..=2 {
        let mut wr = send_wr(wr_id, IBV_WR_RDMA_WRITE, &mut []);
        wr.wr.rdma = write_target(&card, 0);
        post_send(a, &mut wr).unwrap();
    }
    let mut no_attr = ibv_poll_cq_attr { comp_mask: 0 };
    // SAFETY: the queue is valid and has these functions.
    unsafe {
        let (mut seen, mut times) = (Vec::new(), Vec::new());
        while seen.len() < 2 {
            let started = (*ex).start_poll.unwrap()(ex, &mut no_attr);
            if started != 0 {
                assert_eq!(started, libc::ENOENT);
                continue;
            }
            loop {
                seen.push((*ex).wr_id);
                assert_eq!((*ex).status, IBV_WC_SUCCESS);
                assert_eq!((*ex).read_opcode.unwrap()(ex), IBV_WC_RDMA_WRITE);
                assert_eq!((*ex).read_qp_num.unwrap()(ex), (*a).qp_num);
                times.push((*ex).read_completion_ts.unwrap()(ex));
                assert_ne!((*ex).read_completion_wallclock_ns.unwrap()(ex), 0);
                match (*ex).next_poll.unwrap()(ex) {
                    0 => {}
                    errno => break assert_eq!(errno, libc::ENOENT),
                }
            }
            (*ex).end_poll.unwrap()(ex);
        }
        assert_eq!(seen, [1, 2]);
        assert!(times[0] > 0 && times[1] >= times[0]);
    }
    assert_eq!((qp::destroy_qp(a), qp::destroy_qp(b)), (0, 0));
    assert_eq!(cq::resize_cq(cq, 40), 0);
    // SAFETY: it is a valid queue.
    assert_eq!(unsafe { (*cq).cqe }, 64);
    assert_eq!(cq::destroy_cq(cq), 0);
}

#[test]
fn datagrams_say_where_they_come_from() {
    let card = Card::open();
    let cq = card.cq(ptr::null_mut());
    let qps = [card.qp(IBV_QPT_UD, cq, ptr::null_mut()), card.qp(IBV_QPT_UD, cq, ptr::null_mut())];
    for qp in qps {
        let mut attr = ibv_qp_attr::zeroed();
        (attr.qp_state, attr.port_num, attr.qkey) = (IBV_QPS_INIT, 1, 0x1234);
        modify(qp, &mut attr, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY).unwrap();
        to_state(qp, IBV_QPS_RTR).unwrap();
        attr.qp_state = IBV_QPS_RTS;
        modify(qp, &mut attr, IBV_QP_SQ_PSN).unwrap();
    }
    let mut address = card.itself();
    // SAFETY: the attributes live through the call.
    let ah = unsafe { ah::create_ah(card.pd, &mut address) };
    assert!(!ah.is_null());
    assert_eq!(post_recv(qps[1], 1, &mut [card.sge(0, 100)]), 0);
    let mut sges = [card.sge(512, 20)];
    let mut wr = send_wr(2, IBV_WR_SEND, &mut sges);
    // SAFETY: it is a valid queue pair.
    let to = unsafe { (*qps[1]).qp_num };
    // The highest bit means the sender's own Q_Key.
    wr.wr.ud = ibv_send_wr_wr_ud { ah, remote_qpn: to, remote_qkey: 1 << 31 };
    post_send(qps[0], &mut wr).unwrap();
    let (x, y) = (next(cq), next(cq));
    let got = if x.opcode & IBV_WC_RECV == 0 { y } else { x };
    assert_eq!((got.byte_len, got.wc_flags), (60, IBV_WC_GRH));
    // SAFETY: it is a valid queue pair.
    assert_eq!(got.src_qp, unsafe { (*qps[0]).qp_num });
    let mut nowhere = send_wr(3, IBV_WR_SEND, &mut sges);
    nowhere.wr.ud = ibv_send_wr_wr_ud { ah: ptr::null_mut(), remote_qpn: to, remote_qkey: 0 };
    assert_eq!(post_send(qps[0], &mut nowhere), Err((libc::EINVAL, 3)));
}

#[test]
fn invalid_handles_are_refused() {
    let nothing = ptr::null_mut();
    assert!(cq::create_cq(nothing, 1, ptr::null_mut(), ptr::null_mut(), 0).is_null());
    assert_eq!(cq::destroy_cq(ptr::dangling_mut()), libc::EINVAL);
    assert_eq!(qp::destroy_qp(ptr::null_mut()), libc::EINVAL);
    assert_eq!(srq::destroy_srq(ptr::null_mut()), libc::EINVAL);
    let card = Card::open();
    let cq = card.cq(ptr::null_mut());
    assert!(cq::create_cq(card.context, 0, ptr::null_mut(), ptr::null_mut(), 0).is_null());
    assert!(cq::create_cq(card.context, 1, ptr::null_mut(), ptr::null_mut(), 9).is_null());
    let mut no_cq = init(IBV_QPT_RC, ptr::null_mut(), ptr::null_mut());
    let mut raw = init(IBV_QPT_RAW_PACKET, cq, ptr::null_mut());
    let mut large = init(IBV_QPT_RC, cq, ptr::null_mut());
    large.cap.max_send_sge = 1000;
    for bad in [&mut no_cq, &mut raw, &mut large] {
        // SAFETY: the attributes live through the call.
        assert!(unsafe { qp::create_qp(card.pd, bad) }.is_null());
    }
    let qp = card.qp(IBV_QPT_RC, cq, ptr::null_mut());
    assert_eq!(qp::destroy_qp(qp), 0);
    assert_eq!(qp::destroy_qp(qp), libc::EINVAL);
    assert_eq!(post_recv(qp, 0, &mut []), libc::EINVAL);
    assert_eq!(post_send(qp, &mut send_wr(7, IBV_WR_SEND, &mut [])), Err((libc::EINVAL, 7)));
}

/// A shared receive queue of an XRC domain, and its number.
fn xrc_queue(card: &Card, xrcd: *mut ibv_xrcd, cq: *mut ibv_cq) -> (*mut ibv_srq, u32) {
    let mut init = ibv_srq_init_attr_ex::zeroed();
    init.attr = ibv_srq_attr { max_wr: 4, max_sge: 1, srq_limit: 0 };
    init.comp_mask = IBV_SRQ_INIT_ATTR_TYPE
        | IBV_SRQ_INIT_ATTR_PD
        | IBV_SRQ_INIT_ATTR_XRCD
        | IBV_SRQ_INIT_ATTR_CQ;
    (init.srq_type, init.pd, init.xrcd, init.cq) = (IBV_SRQT_XRC, card.pd, xrcd, cq);
    let mut srqn = 0;
    // SAFETY: the attributes live through the call, and the number can be written.
    let srq = unsafe {
        let srq = srq::create_srq_ex(card.context, &mut init);
        assert_eq!(srq::get_srq_num(srq, &mut srqn), 0);
        srq
    };
    (srq, srqn)
}

#[test]
fn xrc_reaches_a_shared_queue_through_a_queue_pair_of_no_process() {
    let card = Card::open();
    let cq = card.cq(ptr::null_mut());
    let mut attr = ibv_xrcd_init_attr {
        comp_mask: IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
        fd: -1,
        oflags: libc::O_CREAT,
    };
    // SAFETY: the attributes live through the call.
    let xrcd = unsafe { xrc::open_xrcd(card.context, &mut attr) };
    assert!(!xrcd.is_null());
    let (srq, srqn) = xrc_queue(&card, xrcd, cq);
    let mut attr = ibv_qp_init_attr_ex::zeroed();
    (attr.comp_mask, attr.xrcd) = (IBV_QP_INIT_ATTR_XRCD, xrcd);
    attr.qp_type = IBV_QPT_XRC_RECV;
    // SAFETY: the attributes live through the call.
    let target = unsafe { qp::create_qp_ex(card.context, &mut attr) };
    let sender = card.qp(IBV_QPT_XRC_SEND, cq, ptr::null_mut());
    card.connect(target, sender);
    card.connect(sender, target);
    assert_eq!(xrc::close_xrcd(xrcd), libc::EBUSY);

    let mut sge = [card.sge(0, 64)];
    let mut request =
        ibv_recv_wr { wr_id: 5, next: ptr::null_mut(), sg_list: sge.as_mut_ptr(), num_sge: 1 };
    // SAFETY: the request and what it points to live through the call.
    assert_eq!(unsafe { recv::post_srq_recv(srq, &mut request, &mut ptr::null_mut()) }, 0);
    let mut from = [card.sge(512, 16)];
    let mut wr = send_wr(6, IBV_WR_SEND, &mut from);
    wr.qp_type.xrc = ibv_send_wr_qp_type_xrc { remote_srqn: srqn };
    post_send(sender, &mut wr).unwrap();
    let (x, y) = (next(cq), next(cq));
    assert_eq!((x.status, y.status), (IBV_WC_SUCCESS, IBV_WC_SUCCESS));
    assert_eq!(x.wr_id + y.wr_id, 11);

    // SAFETY: it is a valid queue pair.
    let number = unsafe { (*target).qp_num };
    let mut open = ibv_qp_open_attr {
        comp_mask: IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE,
        qp_num: number,
        xrcd,
        qp_context: ptr::null_mut(),
        qp_type: IBV_QPT_XRC_RECV,
    };
    // SAFETY: the attributes live through the call.
    let again = unsafe { qp::open_qp(card.context, &mut open) };
    // SAFETY: it is a valid queue pair.
    assert_eq!(unsafe { ((*again).qp_num, (*again).state) }, (number, IBV_QPS_RTS));
    open.qp_num ^= 1;
    // SAFETY: the attributes live through the call.
    assert!(unsafe { qp::open_qp(card.context, &mut open) }.is_null());
    assert_eq!((qp::destroy_qp(target), qp::destroy_qp(again), qp::destroy_qp(sender)), (0, 0, 0));
    assert_eq!((srq::destroy_srq(srq), xrc::close_xrcd(xrcd), cq::destroy_cq(cq)), (0, 0, 0));
}

#[test]
fn a_word_is_written_and_flushed() {
    let card = Card::open();
    let cq = card.cq(ptr::null_mut());
    let mut attr = ibv_qp_init_attr_ex::zeroed();
    (attr.send_cq, attr.recv_cq, attr.pd, attr.qp_type) = (cq, cq, card.pd, IBV_QPT_RC);
    attr.cap = init(IBV_QPT_RC, cq, ptr::null_mut()).cap;
    attr.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    attr.send_ops_flags = (IBV_QP_EX_WITH_ATOMIC_WRITE | newer::IBV_QP_EX_WITH_FLUSH).into();
    // SAFETY: the attributes live through the call.
    let a = unsafe { qp::create_qp_ex(card.context, &mut attr) };
    let b = card.qp(IBV_QPT_RC, cq, ptr::null_mut());
    card.connect(a, b);
    card.connect(b, a);
    let ex = qp::qp_to_qp_ex(a);
    let longer: *mut newer::ibv_qp_ex_v46 = ex.cast();
    let word = 0x1122_3344_5566_7788_u64;
    let at = card.memory.addr() + 64;
    // SAFETY: the queue pair is valid and has these functions.
    unsafe {
        (*ex).wr_flags = IBV_SEND_SIGNALED;
        (*ex).wr_start.unwrap()(ex);
        (*ex).wr_id = 1;
        (*ex).wr_atomic_write.unwrap()(ex, card.key, at, (&raw const word).cast());
        (*ex).wr_id = 2;
        let (kind, level) = (newer::IBV_FLUSH_GLOBAL, newer::IBV_FLUSH_RANGE);
        (*longer).wr_flush.unwrap()(ex, card.key, at, 8, kind, level);
        assert_eq!((*ex).wr_complete.unwrap()(ex), 0);
    }
    let first = next(cq);
    assert_eq!((first.wr_id, first.opcode, first.status), (1, IBV_WC_ATOMIC_WRITE, 0));
    let second = next(cq);
    assert_eq!(second.wr_id, 2);
    assert_eq!(card.memory.load_u64(64), Ok(word));
}

/// Takes a completion, if there is one, and records that its request has ended.
fn collect(cq: *mut ibv_cq, ended: &Mutex<HashSet<u64>>) {
    let mut wc = ibv_wc::zeroed();
    // SAFETY: there is room for one.
    let found = unsafe { poll::poll_cq(cq, 1, &mut wc) };
    assert!(found >= 0, "{found}");
    if found == 1 {
        assert_eq!(wc.status, IBV_WC_SUCCESS);
        assert!(ended.lock().unwrap().insert(wc.wr_id), "request {} ended twice", wc.wr_id);
    }
    std::thread::yield_now();
}

/// As `ibv_create_cq(3)` and its relatives promise, any thread may make any call at any time. Some
/// threads post to one queue and poll another; one makes and destroys objects of the same context.
#[test]
fn threads_share_a_context_and_its_queues() {
    const THREADS: u64 = 4;
    const EACH: u64 = 300;
    const ALL: u64 = THREADS * EACH;
    /// The address of the results; the word that is added to lies at the first address.
    const RESULTS: u64 = 4096;
    let card = Card::open();
    let cq = card.cq(ptr::null_mut());
    let [a, b] = card.pair(IBV_QPT_RC, cq);
    card.memory.write_at(0, &[0; 8]).unwrap();
    let ended = Mutex::new(HashSet::new());
    let (context, base, key) = (card.context.expose_provenance(), card.memory.addr(), card.key);
    let (shared, queue) = (a.expose_provenance(), cq.expose_provenance());
    let work = |thread: u64| {
        let (qp, cq) = (with_exposed_provenance_mut(shared), with_exposed_provenance_mut(queue));
        for wr_id in thread * EACH..(thread + 1) * EACH {
            let addr = base + RESULTS + 8 * wr_id;
            let mut result = [ibv_sge { addr, length: 8, lkey: key }];
            let mut add = send_wr(wr_id, IBV_WR_ATOMIC_FETCH_AND_ADD, &mut result);
            add.wr.atomic =
                ibv_send_wr_wr_atomic { remote_addr: base, compare_add: 1, swap: 0, rkey: key };
            post_send(qp, &mut add).unwrap();
            // Any of the threads may take the completion.
            while !ended.lock().unwrap().contains(&wr_id) {
                collect(cq, &ended);
            }
        }
    };
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let work = &work;
            scope.spawn(move || work(thread));
        }
        scope.spawn(|| {
            for _ in 0..100 {
                let context = with_exposed_provenance_mut(context);
                let pd = pd::alloc_pd(context);
                let channel = channel::create_comp_channel(context);
                let cq = cq::create_cq(context, 8, ptr::null_mut(), channel, 0);
                // SAFETY: the attributes live through the call.
                let qp = unsafe { qp::create_qp(pd, &mut init(IBV_QPT_RC, cq, ptr::null_mut())) };
                assert_eq!((pd::dealloc_pd(pd), cq::destroy_cq(cq)), (libc::EBUSY, libc::EBUSY));
                assert_eq!((qp::destroy_qp(qp), cq::destroy_cq(cq)), (0, 0));
                assert_eq!((channel::destroy_comp_channel(channel), pd::dealloc_pd(pd)), (0, 0));
            }
        });
    });
    // Each addition has found a different value.
    let mut originals: Vec<u64> = (0..ALL).map(|n| card.word(RESULTS + 8 * n)).collect();
    originals.sort_unstable();
    assert_eq!(originals, (0..ALL).collect::<Vec<_>>());
    assert_eq!(card.word(0), ALL);
    assert_eq!((qp::destroy_qp(a), qp::destroy_qp(b)), (0, 0));
}
