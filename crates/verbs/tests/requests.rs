//! Requests through the functions that programs call: which are posted, which are refused.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod card;

use std::ptr;

use card::{Card, done, init, next, post_recv, post_send, send_wr};
use remora_verbs::abi::*;
use remora_verbs::ibverbs::{cq, qp, recv, srq};

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
    let (x, y) = (done(cq), done(cq));
    assert_eq!(x.wr_id.min(y.wr_id), 0);
    assert_eq!(x.wr_id.max(y.wr_id), 11);
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
    no_list_is_needed_or_refused(ex, &card);
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
    assert_eq!((done(cq).wr_id, done(cq).wr_id), (1, 2));
    let mut bytes = [0; 6];
    card.memory.read_at(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"onetwo");
    attr.send_ops_flags = IBV_QP_EX_WITH_TSO.into();
    // SAFETY: the attributes live through the call.
    assert!(unsafe { qp::create_qp_ex(card.context, &mut attr) }.is_null());
}

/// A null list with entries, or an entry with bytes at null, costs the batch and not the process.
fn no_list_is_needed_or_refused(ex: *mut ibv_qp_ex, card: &Card) {
    let nothing = ibv_data_buf { addr: ptr::null_mut(), length: 8 };
    let here = card.memory.addr();
    let sets: [&dyn Fn(&ibv_qp_ex); 5] = [
        // SAFETY: the queue pair is valid and has these functions, here and below.
        &|q| unsafe { q.wr_set_sge_list.unwrap()(ex, 1, ptr::null()) },
        // SAFETY: as above.
        &|q| unsafe { q.wr_set_sge_list.unwrap()(ex, usize::MAX, ptr::null()) },
        // SAFETY: as above.
        &|q| unsafe { q.wr_set_inline_data_list.unwrap()(ex, 1, ptr::null()) },
        // SAFETY: as above.
        &|q| unsafe { q.wr_set_inline_data_list.unwrap()(ex, 1, &nothing) },
        // SAFETY: as above.
        &|q| unsafe { q.wr_set_inline_data.unwrap()(ex, ptr::null_mut(), 8) },
    ];
    let batch = |set: &dyn Fn(&ibv_qp_ex)| {
        // SAFETY: as above.
        unsafe {
            (*ex).wr_flags = 0;
            (*ex).wr_start.unwrap()(ex);
            (*ex).wr_rdma_write.unwrap()(ex, card.key, here);
            set(&*ex);
            (*ex).wr_complete.unwrap()(ex)
        }
    };
    sets.into_iter().for_each(|set| assert_eq!(batch(set), libc::EINVAL));
    // SAFETY: as above.
    assert_eq!(batch(&|q| unsafe { q.wr_set_sge_list.unwrap()(ex, 0, ptr::null()) }), 0);
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
    let (first, second) = (done(cq), done(cq));
    assert_eq!((first.wr_id, first.opcode), (1, IBV_WC_ATOMIC_WRITE));
    assert_eq!((second.wr_id, second.opcode), (2, newer::IBV_WC_FLUSH));
    assert_eq!(card.memory.load_u64(64), Ok(word));
}

/// What an address handle or a list should be, and is not, costs the request and not the process.
#[test]
fn a_wild_pointer_in_a_request_is_refused() {
    let card = Card::open();
    let cq = card.cq(ptr::null_mut());
    let [a, b] = card.pair(IBV_QPT_RC, cq);
    let einval = |wr_id| Err((libc::EINVAL, wr_id));
    for flags in [0, IBV_SEND_INLINE] {
        let mut no_list = send_wr(1, IBV_WR_SEND, &mut []);
        (no_list.sg_list, no_list.num_sge, no_list.send_flags) = (ptr::null_mut(), 1, flags);
        assert_eq!(post_send(a, &mut no_list), einval(1));
        no_list.num_sge = -1;
        assert_eq!(post_send(a, &mut no_list), einval(1));
    }
    let mut no_data = send_wr(2, IBV_WR_SEND, &mut []);
    let mut nothing = [ibv_sge { addr: 0, length: 8, lkey: 0 }];
    (no_data.sg_list, no_data.num_sge) = (nothing.as_mut_ptr(), 1);
    no_data.send_flags = IBV_SEND_INLINE;
    assert_eq!(post_send(a, &mut no_data), einval(2));
    let mut no_list =
        ibv_recv_wr { wr_id: 3, next: ptr::null_mut(), sg_list: ptr::null_mut(), num_sge: 1 };
    let mut bad = ptr::null_mut();
    // SAFETY: the request lives through the call.
    assert_eq!(unsafe { recv::post_recv(b, &mut no_list, &mut bad) }, libc::EINVAL);
    assert_eq!(bad, &raw mut no_list);

    let mut srq_init = ibv_srq_init_attr::zeroed();
    srq_init.attr = ibv_srq_attr { max_wr: 4, max_sge: 2, srq_limit: 0 };
    // SAFETY: the attributes and the request live through the calls.
    unsafe {
        let srq = srq::create_srq(card.pd, &mut srq_init);
        for num_sge in [1, -1] {
            (no_list.num_sge, bad) = (num_sge, ptr::null_mut());
            assert_eq!(recv::post_srq_recv(srq, &mut no_list, &mut bad), libc::EINVAL);
            assert_eq!(bad, &raw mut no_list);
        }
        assert_eq!(recv::post_srq_recv(ptr::null_mut(), &mut no_list, &mut bad), libc::EINVAL);
        assert_eq!(srq::destroy_srq(srq), 0);
    }

    let ud = card.datagram_qp(cq);
    let mut somewhere = 0_u64;
    let wild: [*mut ibv_ah; 4] = [
        ptr::null_mut(),
        ptr::without_provenance_mut(0x1234_5678_9abc),
        ptr::without_provenance_mut(usize::MAX & !7),
        (&raw mut somewhere).cast(),
    ];
    let mut sges = [card.sge(0, 8)];
    for ah in wild {
        let mut wr = send_wr(4, IBV_WR_SEND, &mut sges);
        wr.wr.ud = ibv_send_wr_wr_ud { ah, remote_qpn: 1, remote_qkey: 0 };
        assert_eq!(post_send(ud, &mut wr), einval(4), "{ah:?}");
    }
    assert_eq!((qp::destroy_qp(a), qp::destroy_qp(b), qp::destroy_qp(ud)), (0, 0, 0));
    assert_eq!(cq::destroy_cq(cq), 0);
}

/// As in rdma-core: a program may keep the state that it has set, and compare it later.
#[test]
fn the_state_in_the_programs_struct_changes_when_it_asks() {
    let card = Card::open();
    let cq = card.cq(ptr::null_mut());
    let [a, b] = card.pair(IBV_QPT_RC, cq);
    // A request that the peer refuses takes the queue pair to ERR by itself.
    let mut sges = [card.sge(0, 8)];
    let mut wr = send_wr(1, IBV_WR_RDMA_WRITE, &mut sges);
    wr.wr.rdma = ibv_send_wr_wr_rdma { remote_addr: 0, rkey: 0 };
    post_send(a, &mut wr).unwrap();
    assert_eq!(next(cq).status, IBV_WC_REM_ACCESS_ERR);
    let (mut attr, mut made) = (ibv_qp_attr::zeroed(), ibv_qp_init_attr::zeroed());
    // SAFETY: the queue pair is valid, and both can be written.
    let mut ask = |mask: u32| unsafe {
        assert_eq!(qp::query_qp(a, &mut attr, mask as i32, &mut made), 0);
        (attr.qp_state, (*a).state)
    };
    assert_eq!(ask(IBV_QP_CAP), (IBV_QPS_ERR, IBV_QPS_RTS));
    assert_eq!(ask(IBV_QP_STATE), (IBV_QPS_ERR, IBV_QPS_ERR));
    assert_eq!((qp::destroy_qp(a), qp::destroy_qp(b), cq::destroy_cq(cq)), (0, 0, 0));
}
