//! Access of peers to regions and windows, between two connected queue pairs of one card.
#![allow(clippy::undocumented_unsafe_blocks, reason = "what is passed lives on the stack")]

#[path = "../../remora/tests/support/skips.rs"]
mod skips;

use std::ffi::c_void;
use std::ptr::{null_mut, with_exposed_provenance_mut};

use remora_verbs::abi::*;
use remora_verbs::ibverbs::{
    ah, bind_mw, context, cq, device, dm, mr, mw, open, pd, poll, post, qp,
};

const ALL: u32 = IBV_ACCESS_LOCAL_WRITE
    | IBV_ACCESS_REMOTE_WRITE
    | IBV_ACCESS_REMOTE_READ
    | IBV_ACCESS_REMOTE_ATOMIC
    | IBV_ACCESS_MW_BIND;

/// A requester and a responder on one card.
struct Two {
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    cq: *mut ibv_cq,
    from: *mut ibv_qp,
    to: *mut ibv_qp,
    bytes: Vec<u64>,
    region: *mut ibv_mr,
}

impl Two {
    fn new() -> Two {
        let context = open::open_device(device::devices()[0].c());
        let pd = pd::alloc_pd(context);
        let cq = cq::create_cq(context, 16, null_mut(), null_mut(), 0);
        let mut init = ibv_qp_init_attr::zeroed();
        (init.send_cq, init.recv_cq, init.qp_type) = (cq, cq, IBV_QPT_RC);
        (init.cap.max_send_wr, init.cap.max_send_sge) = (8, 1);
        let [from, to] = [0; 2].map(|_| unsafe { qp::create_qp(pd, &mut init) });
        connect(from, to);
        connect(to, from);
        let mut bytes = vec![0; 1024];
        let region = mr::reg_mr(pd, bytes.as_mut_ptr().cast(), 8192, ALL as i32);
        Two { context, pd, cq, from, to, bytes, region }
    }

    fn addr(&self, word: usize) -> u64 {
        (&raw const self.bytes[word]) as u64
    }

    /// Makes a request of eight bytes, from or to the last word of the buffer; returns its status.
    fn ask(&self, opcode: ibv_wr_opcode, addr: u64, rkey: u32) -> ibv_wc_status {
        let lkey = unsafe { (*self.region).lkey };
        self.ask_with(ibv_sge { addr: self.addr(1023), length: 8, lkey }, opcode, addr, rkey)
    }

    fn ask_with(
        &self,
        mut sge: ibv_sge,
        opcode: ibv_wr_opcode,
        addr: u64,
        rkey: u32,
    ) -> ibv_wc_status {
        let mut wr = ibv_send_wr::zeroed();
        (wr.opcode, wr.send_flags, wr.sg_list, wr.num_sge) =
            (opcode, IBV_SEND_SIGNALED, &mut sge, 1);
        wr.wr.rdma = ibv_send_wr_wr_rdma { remote_addr: addr, rkey };
        assert_eq!(unsafe { post::post_send(self.from, &mut wr, &mut null_mut()) }, 0);
        self.next().status
    }

    fn next(&self) -> ibv_wc {
        let mut wc = ibv_wc::zeroed();
        while unsafe { poll::poll_cq(self.cq, 1, &mut wc) } == 0 {
            std::thread::yield_now();
        }
        wc
    }

    /// Destroys everything that is left.
    fn end(self) {
        assert_eq!((qp::destroy_qp(self.from), qp::destroy_qp(self.to)), (0, 0));
        assert_eq!(mr::dereg_mr(self.region), 0);
        assert_eq!(cq::destroy_cq(self.cq), 0);
        assert_eq!(pd::dealloc_pd(self.pd), 0);
        assert_eq!(context::close_device(self.context), 0);
    }
}

/// Brings a queue pair to RTS.
fn connect(qp: *mut ibv_qp, peer: *mut ibv_qp) {
    let mut attr = ibv_qp_attr::zeroed();
    (attr.port_num, attr.path_mtu, attr.qp_access_flags) = (1, IBV_MTU_1024, ALL & !1 & !16);
    attr.dest_qp_num = unsafe { (*peer).qp_num };
    let card = qp::find(qp).unwrap().context.card;
    attr.ah_attr = ah::attr_of(&remora::nic::Path::new(card.address, 0));
    (attr.max_rd_atomic, attr.max_dest_rd_atomic) = (4, 4);
    (attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer) = (14, 7, 7, 12);
    let steps = [
        (IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
        (
            IBV_QPS_RTR,
            IBV_QP_AV
                | IBV_QP_PATH_MTU
                | IBV_QP_DEST_QPN
                | IBV_QP_RQ_PSN
                | IBV_QP_MAX_DEST_RD_ATOMIC
                | IBV_QP_MIN_RNR_TIMER,
        ),
        (
            IBV_QPS_RTS,
            IBV_QP_SQ_PSN
                | IBV_QP_TIMEOUT
                | IBV_QP_RETRY_CNT
                | IBV_QP_RNR_RETRY
                | IBV_QP_MAX_QP_RD_ATOMIC,
        ),
    ];
    for (state, mask) in steps {
        attr.qp_state = state;
        qp::modify(qp, &attr, mask | IBV_QP_STATE).unwrap();
    }
}

#[test]
fn a_region_may_have_other_addresses_than_its_memory() {
    let mut two = Two::new();
    two.bytes[5] = 55;
    let at = with_exposed_provenance_mut(two.addr(5) as usize);
    let flags = ALL as i32;
    let far = mr::reg_mr_iova(two.pd, at, 8, 0x7000_0000_0000_0008, flags);
    let rkey = unsafe { (*far).rkey };
    assert_eq!(two.ask(IBV_WR_RDMA_READ, 0x7000_0000_0000_0008, rkey), IBV_WC_SUCCESS);
    assert_eq!(two.bytes[1023], 55);
    assert_eq!(mr::rereg_mr(far, IBV_REREG_MR_CHANGE_ACCESS as i32, null_mut(), at, 8, 1), 0);
    assert_eq!(two.ask(IBV_WR_RDMA_READ, 0x7000_0000_0000_0008, rkey), IBV_WC_REM_ACCESS_ERR);
    mr::dereg_mr(far);
    two.end();
}

#[test]
fn device_memory_is_reached_from_its_first_byte_on() {
    let mut two = Two::new();
    two.bytes[1023] = 77;
    let mut attr = ibv_alloc_dm_attr { length: 64, log_align_req: 0, comp_mask: 0 };
    let memory = unsafe { dm::alloc_dm(two.context, &mut attr) };
    let region = mr::reg_dm_mr(two.pd, memory, 0, 64, ALL & !16 | IBV_ACCESS_ZERO_BASED);
    let rkey = unsafe { (*region).rkey };
    assert_eq!(two.ask(IBV_WR_RDMA_WRITE, 56, rkey), IBV_WC_SUCCESS);
    let mut word = 0u64;
    let copy = unsafe { (*memory).memcpy_from_dm }.unwrap();
    assert_eq!(unsafe { copy((&raw mut word).cast(), memory, 56, 8) }, 0);
    assert_eq!(word, 77);
    assert_eq!(two.ask(IBV_WR_RDMA_WRITE, 57, rkey), IBV_WC_REM_ACCESS_ERR);
    assert_eq!((mr::dereg_mr(region), dm::free_dm(memory)), (0, 0));
    two.end();
}

/// The kernel refuses persistence for devices that do not claim it; so no FLUSH has to reach a
/// medium.
#[test]
fn no_memory_can_be_registered_as_persistent() {
    let mut two = Two::new();
    let flags = (ALL | newer::IBV_ACCESS_FLUSH_GLOBAL | newer::IBV_ACCESS_FLUSH_PERSISTENT) as i32;
    let refused = mr::reg_mr(two.pd, two.bytes.as_mut_ptr().cast(), 8192, flags);
    assert!(refused.is_null());
    assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EOPNOTSUPP));
    two.end();
}

/// A missing page fails the request, but does not end the process.
#[test]
fn memory_on_demand_may_be_missing() {
    for local in [false, true] {
        let mut two = Two::new();
        let flags = (ALL | IBV_ACCESS_ON_DEMAND) as i32;
        let everything = mr::reg_mr(two.pd, null_mut(), usize::MAX, flags);
        let key = unsafe { (*everything).lkey };
        two.bytes[1] = 11;
        assert_eq!(two.ask(IBV_WR_RDMA_READ, two.addr(1), key), IBV_WC_SUCCESS);
        assert_eq!(two.bytes[1023], 11);
        if local {
            let sge = ibv_sge { addr: 0x1000, length: 8, lkey: key };
            let rkey = unsafe { (*two.region).rkey };
            let ended = two.ask_with(sge, IBV_WR_RDMA_WRITE, two.addr(0), rkey);
            assert_eq!(ended, IBV_WC_LOC_PROT_ERR);
        } else {
            let ended = two.ask(IBV_WR_RDMA_WRITE, 0x1000, key);
            assert!(matches!(ended, IBV_WC_REM_OP_ERR | IBV_WC_REM_ACCESS_ERR), "{ended}");
        }
        assert_eq!(mr::dereg_mr(everything), 0);
        two.end();
    }
}

#[test]
fn the_null_region_discards_writes_and_reads_as_zero() {
    let mut two = Two::new();
    let nothing = mr::alloc_null_mr(two.pd);
    let lkey = unsafe { (*nothing).lkey };
    two.bytes[0] = 9;
    let rkey = unsafe { (*two.region).rkey };
    let sge = ibv_sge { addr: 12345, length: 8, lkey };
    assert_eq!(two.ask_with(sge, IBV_WR_RDMA_READ, two.addr(0), rkey), IBV_WC_SUCCESS);
    assert_eq!(two.ask_with(sge, IBV_WR_RDMA_WRITE, two.addr(0), rkey), IBV_WC_SUCCESS);
    assert_eq!(two.bytes[0], 0);
    mr::dereg_mr(nothing);
    two.end();
}

#[test]
fn a_window_of_type_1_opens_a_part_of_a_region() {
    let mut two = Two::new();
    two.bytes[4] = 44;
    let window = mw::alloc_mw(two.pd, IBV_MW_TYPE_1);
    let before = unsafe { (*window).rkey };
    let bind_info = ibv_mw_bind_info {
        mr: two.region,
        addr: two.addr(4),
        length: 8,
        mw_access_flags: IBV_ACCESS_REMOTE_READ,
    };
    let mut bind = ibv_mw_bind { wr_id: 3, send_flags: IBV_SEND_SIGNALED, bind_info };
    assert_eq!(unsafe { bind_mw::bind_mw(two.to, window, &mut bind) }, 0);
    let wc = two.next();
    assert_eq!((wc.wr_id, wc.status, wc.opcode), (3, IBV_WC_SUCCESS, IBV_WC_BIND_MW));
    let rkey = unsafe { (*window).rkey };
    assert_ne!(rkey, before);
    assert_eq!(mr::dereg_mr(two.region), libc::EBUSY);
    assert_eq!(two.ask(IBV_WR_RDMA_READ, two.addr(4), rkey), IBV_WC_SUCCESS);
    assert_eq!(two.bytes[1023], 44);
    assert_eq!(two.ask(IBV_WR_RDMA_WRITE, two.addr(4), rkey), IBV_WC_REM_ACCESS_ERR);
    assert_eq!((mw::dealloc_mw(window), mw::dealloc_mw(window)), (0, libc::EINVAL));
    two.end();
}

#[test]
fn a_window_of_type_2_is_bound_and_invalidated_by_requests() {
    let two = Two::new();
    let window = mw::alloc_mw(two.pd, IBV_MW_TYPE_2);
    let rkey = unsafe { (*window).rkey } ^ 1;
    let bind_info = ibv_mw_bind_info {
        mr: two.region,
        addr: two.addr(0),
        length: 16,
        mw_access_flags: IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_ZERO_BASED,
    };
    let mut wr = ibv_send_wr::zeroed();
    (wr.opcode, wr.send_flags) = (IBV_WR_BIND_MW, IBV_SEND_SIGNALED);
    wr.extra.bind_mw = ibv_send_wr_extra_bind_mw { mw: window, rkey, bind_info };
    assert_eq!(unsafe { post::post_send(two.to, &mut wr, &mut null_mut()) }, 0);
    assert_eq!(two.next().status, IBV_WC_SUCCESS);
    assert_eq!(two.ask(IBV_WR_RDMA_WRITE, 8, rkey), IBV_WC_SUCCESS);
    let mut wr = ibv_send_wr::zeroed();
    (wr.opcode, wr.send_flags) = (IBV_WR_LOCAL_INV, IBV_SEND_SIGNALED);
    wr.imm.invalidate_rkey = rkey;
    assert_eq!(unsafe { post::post_send(two.to, &mut wr, &mut null_mut()) }, 0);
    let wc = two.next();
    assert_eq!((wc.status, wc.opcode), (IBV_WC_SUCCESS, IBV_WC_LOCAL_INV));
    assert_eq!(two.ask(IBV_WR_RDMA_WRITE, 8, rkey), IBV_WC_REM_ACCESS_ERR);
    assert_eq!(mw::dealloc_mw(window), 0);
    two.end();
}

/// Two huge pages at `addr`, or wherever the kernel likes; `None` if the machine has none.
fn huge(flags: i32, fd: i32) -> Option<*mut c_void> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let at = unsafe { libc::mmap(null_mut(), 4 << 20, protection, flags, fd, 0) };
    (at != libc::MAP_FAILED).then_some(at)
}

/// Pages of 2 MB: anonymous, of a file in memory, or merged by the kernel.
#[test]
fn huge_pages_are_registered_and_reached() {
    let two = Two::new();
    let file =
        unsafe { libc::memfd_create(c"huge".as_ptr(), libc::MFD_HUGETLB | libc::MFD_CLOEXEC) };
    if file >= 0 {
        assert_eq!(unsafe { libc::ftruncate(file, 4 << 20) }, 0);
    }
    let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let merged = huge(anonymous, -1).unwrap();
    unsafe { libc::madvise(merged, 4 << 20, libc::MADV_HUGEPAGE) };
    let kinds = [
        ("anonymous", huge(anonymous | libc::MAP_HUGETLB, -1)),
        ("a file's", if file >= 0 { huge(libc::MAP_SHARED, file) } else { None }),
        ("merged", Some(merged)),
    ];
    for (kind, at) in kinds {
        let Some(at) = at else {
            skips::lacks(&format!("there are no huge pages (vm.nr_hugepages), {kind} ones"));
            continue;
        };
        for access in [ALL, ALL | IBV_ACCESS_HUGETLB, ALL | IBV_ACCESS_ON_DEMAND] {
            // All of them, and a part that begins and ends within one.
            for (from, len) in [(0, 4 << 20), (5000, 3 << 20)] {
                let start = at.wrapping_byte_add(from);
                let region = mr::reg_mr(two.pd, start, len, access as i32);
                assert!(!region.is_null(), "{kind}: {}", std::io::Error::last_os_error());
                let rkey = unsafe { (*region).rkey };
                let last = start as u64 + len as u64 - 8;
                assert_eq!(two.ask(IBV_WR_RDMA_WRITE, last, rkey), IBV_WC_SUCCESS, "{kind}");
                assert_eq!(mr::dereg_mr(region), 0);
            }
        }
        assert_eq!(unsafe { libc::munmap(at, 4 << 20) }, 0);
    }
    two.end();
}
