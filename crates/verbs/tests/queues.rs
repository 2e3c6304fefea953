//! Queues through the functions that programs call, in one process: two queue pairs of one card
//! that are connected to each other.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod card;

use std::collections::HashSet;
use std::ptr::{self, with_exposed_provenance_mut};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use card::{Card, done, init, modify, next, post_recv, post_send, send_wr, to_state, write_target};
use remora_verbs::abi::*;
use remora_verbs::ibverbs::{ah, async_event, channel, cq, cq_ex, pd, poll, qp, recv, srq, xrc};

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
    let (x, y) = (done(cq), done(cq));
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
        assert_eq!((done(theirs).wr_id, round), (2, round));
        post_send(b, &mut send_wr(4, IBV_WR_SEND, &mut [card.sge(0, 8)])).unwrap();
        assert_eq!(qp::destroy_qp(b), 0);
        for _ in 0..2 {
            done(ours);
        }
        assert_eq!(qp::destroy_qp(a), 0);
    }
    assert_eq!((cq::destroy_cq(ours), cq::destroy_cq(theirs)), (0, 0));
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
    let wc = next(cq);
    assert_eq!((wc.wr_id, wc.status), (9, IBV_WC_WR_FLUSH_ERR));
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
    assert_eq!(done(cq).wr_id, 1);
    // Moderated, the queue reports two completions with one event.
    let moderate = ibv_moderate_cq { cq_count: 2, cq_period: 0 };
    let mut attr = ibv_modify_cq_attr { attr_mask: IBV_CQ_ATTR_MODERATE, moderate };
    // SAFETY: the attributes can be read; the queue is valid.
    unsafe { assert_eq!((cq::modify_cq(cq, &mut attr), cq::req_notify_cq(cq, 0)), (0, 0)) };
    for ready in [0, 1] {
        post_send(a, &mut wr).unwrap();
        assert_eq!(done(cq).wr_id, 1);
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
    let qps = [card.datagram_qp(cq), card.datagram_qp(cq)];
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
    let (x, y) = (done(cq), done(cq));
    let got = if x.opcode & IBV_WC_RECV == 0 { y } else { x };
    assert_eq!((got.byte_len, got.wc_flags), (60, IBV_WC_GRH));
    // SAFETY: it is a valid queue pair.
    assert_eq!(got.src_qp, unsafe { (*qps[0]).qp_num });
    let mut nowhere = send_wr(3, IBV_WR_SEND, &mut sges);
    nowhere.wr.ud = ibv_send_wr_wr_ud { ah: ptr::null_mut(), remote_qpn: to, remote_qkey: 0 };
    assert_eq!(post_send(qps[0], &mut nowhere), Err((libc::EINVAL, 3)));
}

/// As Linux says it to programs without rights to the network.
#[test]
fn a_privileged_key_is_not_permitted() {
    let card = Card::open();
    let qp = card.datagram_qp(card.cq(ptr::null_mut()));
    let mut attr = ibv_qp_attr::zeroed();
    (attr.qp_state, attr.qkey) = (IBV_QPS_RTS, 0x8001_0000);
    assert_eq!(modify(qp, &mut attr, IBV_QP_QKEY), Err(libc::EPERM));
    attr.qkey = 0x7fff_ffff;
    assert_eq!(modify(qp, &mut attr, IBV_QP_QKEY), Ok(()));
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

/// An XRC domain of no file.
fn xrc_domain(card: &Card) -> *mut ibv_xrcd {
    let mut attr = ibv_xrcd_init_attr {
        comp_mask: IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
        fd: -1,
        oflags: libc::O_CREAT,
    };
    // SAFETY: the attributes live through the call.
    let xrcd = unsafe { xrc::open_xrcd(card.context, &mut attr) };
    assert!(!xrcd.is_null());
    xrcd
}

/// A receiving queue pair of an XRC domain.
fn xrc_target(card: &Card, xrcd: *mut ibv_xrcd) -> *mut ibv_qp {
    let mut attr = ibv_qp_init_attr_ex::zeroed();
    (attr.comp_mask, attr.xrcd) = (IBV_QP_INIT_ATTR_XRCD, xrcd);
    attr.qp_type = IBV_QPT_XRC_RECV;
    // SAFETY: the attributes live through the call.
    let target = unsafe { qp::create_qp_ex(card.context, &mut attr) };
    assert!(!target.is_null());
    target
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
    let xrcd = xrc_domain(&card);
    let (srq, srqn) = xrc_queue(&card, xrcd, cq);
    let target = xrc_target(&card, xrcd);
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
    let (x, y) = (done(cq), done(cq));
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

/// A thread opens a receiving queue pair that there is not, while another makes and destroys some.
#[test]
fn an_xrc_queue_pair_is_opened_while_another_is_destroyed() {
    let card = Card::open();
    let xrcd = xrc_domain(&card);
    let [context, domain] = [card.context.expose_provenance(), xrcd.expose_provenance()];
    let ended = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let mut open = ibv_qp_open_attr {
                comp_mask: IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE,
                qp_num: 0xff_fff0,
                xrcd: with_exposed_provenance_mut(domain),
                qp_context: ptr::null_mut(),
                qp_type: IBV_QPT_XRC_RECV,
            };
            while !ended.load(Ordering::Relaxed) {
                let context = with_exposed_provenance_mut(context);
                // SAFETY: the attributes live through the call.
                assert!(unsafe { qp::open_qp(context, &mut open) }.is_null());
            }
        });
        for _ in 0..20_000 {
            assert_eq!(qp::destroy_qp(xrc_target(&card, xrcd)), 0);
        }
        ended.store(true, Ordering::Relaxed);
    });
    assert_eq!(xrc::close_xrcd(xrcd), 0);
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
