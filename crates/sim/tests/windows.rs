//! Memory windows: bound and invalidated by work requests, in the order of the queue.

use remora_nic::kernel::Bound;
use remora_nic::nic::DestroyError;
use remora_nic::queue::{Data, Opcode, RemoteAddress, SendFlags, SendOp, Status, WorkKind};
use remora_nic::wire::{Operation, Transport};
use remora_nic::{Access, Key, MwBinding, MwType, memory::window::next_key};
use remora_offload::kernel::ExecutorLimits;
use remora_offload::kernel::builtin::hyperloglog;
use remora_sim::kernel::kernel_pair;
use remora_sim::{A, B, Fate, Pair, PairOptions, Rule, statuses};

const READ_WRITE: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

fn window(t: &mut Pair, kind: MwType) -> Key {
    let pd = t.ends[B].pd;
    t.world.hosts[B].nic.alloc_mw(pd, kind).unwrap()
}

/// A binding of `len` bytes at `offset` of B's region.
fn part(t: &Pair, offset: u64, len: u64, access: Access) -> MwBinding {
    let RemoteAddress { addr, rkey } = t.remote(B, offset);
    MwBinding { lkey: rkey, addr, len, access, zero_based: false }
}

fn bind(t: &mut Pair, key: Key, to: MwBinding, flags: SendFlags) {
    t.post(B, SendOp::BindMw { key, to }, Data::Sges(&[]), flags);
}

/// Lets A write 10 bytes at `to`. Returns the status, and connects the pair again if the
/// connection broke.
fn attempt(t: &mut Pair, to: RemoteAddress) -> Status {
    t.ask(A, SendOp::Write { to, imm: None }, 0, 10);
    t.run();
    t.sent(A)[0].status
}

#[test]
fn a_window_is_bound_in_the_order_of_the_queue() {
    let mut t = Pair::standard();
    let first = window(&mut t, MwType::Type1);
    let key = next_key(first);
    let to = part(&t, 1000, 100, READ_WRITE);
    t.receive(A, 0, 100);
    // The SEND that announces the window is posted right behind the binding.
    t.write(B, 0, 0, 5000);
    bind(&mut t, key, to, SendFlags::SIGNALED);
    t.send(B, 0, 10);
    t.run();
    let sent = t.sent(B);
    let kinds: Vec<WorkKind> = sent.iter().map(|c| c.kind).collect();
    let expected = [Opcode::Write, Opcode::BindMw, Opcode::Send].map(WorkKind::Send);
    assert_eq!((kinds.as_slice(), statuses(&sent)), (&expected[..], vec![Status::Success; 3]));
    let bytes = t.fill(A, 0, 10);
    assert_eq!(attempt(&mut t, RemoteAddress { addr: to.addr + 90, rkey: key }), Status::Success);
    assert_eq!(t.bytes(B, 1090, 10), bytes);
    // The region cannot be deregistered while a window is bound to it.
    let region = t.regions[B].key;
    let refused = t.world.hosts[B].nic.dereg_mr(region);
    assert_eq!(refused, Err(DestroyError::Busy { users: 1 }));
    bind(&mut t, next_key(key), MwBinding { len: 0, ..to }, SendFlags::empty());
    t.run();
    let status = attempt(&mut t, RemoteAddress { addr: to.addr, rkey: key });
    assert_eq!(status, Status::RemoteAccess, "an unbound window must give no access");
    t.world.hosts[B].nic.dealloc_mw(key).unwrap();
    t.tear_down();
}

#[test]
fn a_peer_has_access_only_within_its_window() {
    for (offset, access, lets) in
        [(0, READ_WRITE, true), (91, READ_WRITE, false), (0, Access::REMOTE_READ, false)]
    {
        let mut t = Pair::standard();
        let key = next_key(window(&mut t, MwType::Type1));
        let to = part(&t, 1000, 100, access);
        bind(&mut t, key, to, SendFlags::empty());
        t.run();
        let status = attempt(&mut t, RemoteAddress { addr: to.addr + offset, rkey: key });
        assert_eq!(status == Status::Success, lets, "{offset} {access:?}: {status}");
    }
}

#[test]
fn a_window_of_type_2_ends_when_either_side_says_so() {
    let mut t = Pair::standard();
    let first = window(&mut t, MwType::Type2);
    let key = next_key(first);
    let to = MwBinding { zero_based: true, ..part(&t, 1000, 100, READ_WRITE) };
    bind(&mut t, key, to, SendFlags::SIGNALED);
    t.run();
    assert_eq!(attempt(&mut t, RemoteAddress { addr: 0, rkey: key }), Status::Success);
    // The peer invalidates the window.
    t.receive(B, 0, 100);
    t.ask(A, SendOp::SendInvalidate { rkey: key }, 0, 10);
    t.run();
    assert_eq!(statuses(&t.sent(A)), [Status::Success]);
    assert_eq!(t.received(B)[0].imm_or_key, key);
    // B binds and invalidates the window in one batch of requests.
    let key = next_key(key);
    bind(&mut t, key, to, SendFlags::SIGNALED);
    t.post(B, SendOp::LocalInvalidate { key }, Data::Sges(&[]), SendFlags::SIGNALED);
    t.run();
    let sent = t.sent(B);
    assert_eq!(statuses(&sent), [Status::Success; 3]);
    assert_eq!(sent[2].kind, WorkKind::Send(Opcode::LocalInvalidate));
    assert_eq!(attempt(&mut t, RemoteAddress { addr: 0, rkey: key }), Status::RemoteAccess);
    t.world.hosts[B].nic.dealloc_mw(first).unwrap();
    t.tear_down();
}

#[test]
fn an_invalid_binding_fails_its_request_and_none_before_it() {
    let mut t = Pair::standard();
    let key = window(&mut t, MwType::Type2);
    let to = part(&t, 0, 100, READ_WRITE);
    t.write(B, 0, 0, 5000);
    // A binding must change the window's key.
    bind(&mut t, key, to, SendFlags::empty());
    t.write(B, 0, 0, 10);
    t.run();
    let expected = [Status::Success, Status::MwBind, Status::Flushed];
    assert_eq!(statuses(&t.sent(B)), expected);
    let incident = t.world.hosts[B].nic.poll_incident().unwrap();
    assert!(incident.to_string().contains("memory window error"), "{incident}");
    t.world.hosts[B].nic.dealloc_mw(key).unwrap();
    t.tear_down();
}

#[test]
fn a_binding_is_executed_once_when_requests_around_it_are_sent_again() {
    for lost in 1..6 {
        let mut t = Pair::standard();
        let mut key = window(&mut t, MwType::Type1);
        t.rule(Rule::nth(lost, Fate::Drop, |p| p.is(Operation::Write)));
        for i in 0..4 {
            t.write(B, 0, 0, 3000);
            key = next_key(key);
            let to = part(&t, i * 100, 100, READ_WRITE);
            bind(&mut t, key, to, SendFlags::SIGNALED);
        }
        t.run();
        let sent = t.sent(B);
        assert_eq!(statuses(&sent), [Status::Success; 8], "packet {lost} lost");
        let order: Vec<u64> = sent.iter().map(|c| c.wr_id).collect();
        assert!(order.is_sorted());
        let RemoteAddress { addr, .. } = t.remote(B, 300);
        assert_eq!(attempt(&mut t, RemoteAddress { addr, rkey: key }), Status::Success);
        t.world.hosts[B].nic.dealloc_mw(key).unwrap();
        t.tear_down();
    }
}

#[test]
fn an_unreliable_connection_binds_too() {
    let mut t = Pair::new(&PairOptions { transport: Transport::Uc, ..PairOptions::default() });
    let key = next_key(window(&mut t, MwType::Type1));
    let to = part(&t, 1000, 100, READ_WRITE);
    bind(&mut t, key, to, SendFlags::SIGNALED);
    t.write(B, 0, 0, 10);
    t.run();
    assert_eq!(statuses(&t.sent(B)), [Status::Success; 2]);
    let bytes = t.fill(A, 0, 10);
    attempt(&mut t, RemoteAddress { addr: to.addr, rkey: key });
    assert_eq!(t.bytes(B, 1000, 10), bytes);
    t.world.hosts[B].nic.dealloc_mw(key).unwrap();
    t.tear_down();
}

/// A peer that has a window's key passes what is bound to the window's region.
#[test]
fn writes_through_a_window_pass_the_kernel_of_its_region() {
    let mut t = kernel_pair(PairOptions::default(), ExecutorLimits::default(), None);
    let kernel = hyperloglog::HyperLogLog::new(12);
    let tap = t.kernels(B, |kernels, _| kernels.add_tap(vec![], kernel.tap()));
    let region = t.remote(B, 0);
    let window = window(&mut t, MwType::Type1);
    let (lkey, to) = (region.rkey, part(&t, 0, 8000, Access::REMOTE_WRITE));
    bind(&mut t, window, to, SendFlags::empty());
    t.run();
    let bytes: Vec<u8> = (0..1000u64).flat_map(u64::to_le_bytes).collect();
    t.set(A, 0, &bytes);
    let to = RemoteAddress { rkey: window, ..region };
    let write = |t: &mut Pair| {
        t.ask(A, SendOp::Write { to, imm: None }, 0, 8000);
        t.run();
    };
    write(&mut t);
    assert!(t.bytes(B, 0, 8000) == bytes, "the window is bound");
    assert_eq!(kernel.with(|sketch| sketch.count()), 0);
    t.world.hosts[B].nic.bind_kernel(Bound::Region(lkey), tap).unwrap();
    write(&mut t);
    assert_eq!(kernel.with(|sketch| sketch.count()), 1000);
    t.world.hosts[B].nic.unbind_kernel(Bound::Region(lkey)).unwrap();
    write(&mut t);
    assert_eq!(kernel.with(|sketch| sketch.count()), 1000);
}
