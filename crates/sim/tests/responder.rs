//! The responder, packet by packet: duplicate, expected and future PSNs, and the requests that it
//! must refuse.

use remora_nic::psn::Psn;
use remora_nic::qp::State;
use remora_nic::queue::{Data, RemoteAddress, SendFlags, SendOp, Status};
use remora_nic::wire::opcode::Follows;
use remora_nic::wire::{
    AtomicEth, Bth, Dialect, Extensions, Leth, Nak, Op, Operation, Position, Reth, Transport,
};
use remora_nic::{Access, Event, MwBinding, MwType, memory::window::next_key};
use remora_sim::endpoint::ConnectOptions;
use remora_sim::packet::Wire;
use remora_sim::pair::address;
use remora_sim::{A, B, Fate, Pair, PairOptions, Rule, statuses};

fn op(operation: Operation, position: Position) -> &'static Op {
    Op::of(Transport::Rc, operation, position, Follows::empty())
}

/// Checks that B has answered with this NAK, and that its queue pair is in ERROR.
fn assert_refused(t: &mut Pair, nak: Nak, status: Status) {
    assert_eq!(t.seen(|p| p.is_nak(nak)).len(), 1, "one NAK {nak:?}");
    assert_eq!(statuses(&t.sent(A)), [status]);
    assert_eq!(t.ends[B].state(&t.world), State::Error);
    let told = match nak {
        Nak::RemoteAccess => Event::QpAccessError(t.ends[B].qpn),
        _ => Event::QpRequestError(t.ends[B].qpn),
    };
    assert!(t.events(B).contains(&told));
}

/// Sends a forged request: a WRITE of these bytes to the start of B's region.
fn forge_write(t: &mut Pair, psn: u32, bytes: &[u8]) {
    let RemoteAddress { addr, rkey } = t.remote(B, 0);
    let reth = Reth { addr, rkey, len: bytes.len() as u32 };
    let ext = Extensions { reth, ..Extensions::default() };
    t.forge(A, psn, op(Operation::Write, Position::Only), &ext, bytes);
}

#[test]
fn the_expected_psn_is_executed_and_acknowledged() {
    let mut t = Pair::standard();
    forge_write(&mut t, 100, &[7; 20]);
    t.run();
    // Expect: the bytes are written, and an acknowledge has MSN 1.
    assert_eq!(t.bytes(B, 0, 20), [7; 20]);
    let acks = t.seen(|p| p.is_ack());
    assert_eq!((acks[0].bth.psn.value(), acks[0].ext.aeth.msn), (100, 1));
}

#[test]
fn a_duplicate_psn_is_acknowledged_and_not_executed() {
    let mut t = Pair::standard();
    forge_write(&mut t, 100, &[7; 20]);
    forge_write(&mut t, 100, &[8; 20]);
    forge_write(&mut t, 99, &[9; 20]);
    t.run();
    // Expect: only the first request is executed, and one acknowledge covers all.
    assert_eq!(t.bytes(B, 0, 20), [7; 20]);
    assert!(t.seen(|p| p.is_ack()).iter().all(|a| a.bth.psn.value() == 100));
    assert_eq!(t.world.hosts[B].nic.counters().rx_duplicates, 2);
}

#[test]
fn a_future_psn_gets_one_sequence_nak() {
    let mut t = Pair::standard();
    for psn in [102, 103, 104] {
        forge_write(&mut t, psn, &[7; 20]);
        t.run();
    }
    // Expect: no effect, and a single NAK with the missing PSN.
    assert_ne!(t.bytes(B, 0, 20), [7; 20]);
    let naks = t.seen(|p| p.is_nak(Nak::PsnSequence));
    assert_eq!(naks.iter().map(|n| n.bth.psn.value()).collect::<Vec<_>>(), [100]);
    forge_write(&mut t, 100, &[8; 20]);
    forge_write(&mut t, 103, &[9; 20]);
    t.run();
    // Expect: after the missing packet has arrived, the next gap gets a NAK again.
    assert_eq!(t.bytes(B, 0, 20), [8; 20]);
    assert_eq!(t.seen(|p| p.is_nak(Nak::PsnSequence))[1].bth.psn.value(), 101);
}

#[test]
fn a_repeated_read_is_executed_again() {
    let mut t = Pair::standard();
    t.set(B, 0, &[1; 8]);
    t.read(A, 0, 100, 8);
    t.run();
    t.set(B, 0, &[2; 8]);
    t.forget();
    let RemoteAddress { addr, rkey } = t.remote(B, 0);
    let ext = Extensions { reth: Reth { addr, rkey, len: 8 }, ..Extensions::default() };
    t.forge(A, 100, op(Operation::ReadRequest, Position::Only), &ext, &[]);
    t.run();
    // Expect: a second response, which A ignores since it has its data.
    assert_eq!(t.seen(|p| p.is(Operation::ReadResponse)).len(), 1);
    assert_eq!(t.bytes(A, 100, 8), [1; 8]);
    let other = Reth { addr: addr + 8, rkey, len: 8 };
    let ext = Extensions { reth: other, ..Extensions::default() };
    t.forge(A, 100, op(Operation::ReadRequest, Position::Only), &ext, &[]);
    t.run();
    // Expect: a duplicate PSN with another request is dropped.
    assert_eq!(t.world.hosts[B].nic.counters().drop_stale_duplicate, 1);
    assert_eq!(t.seen(|p| p.is(Operation::ReadResponse)).len(), 1);
}

#[test]
fn a_stale_key_is_refused() {
    let mut t = Pair::standard();
    let to = t.remote(B, 0);
    t.world.hosts[B].nic.dereg_mr(to.rkey).unwrap();
    t.ask(A, SendOp::Write { to, imm: None }, 0, 10);
    t.run();
    // Expect: a remote access error on both sides.
    assert_refused(&mut t, Nak::RemoteAccess, Status::RemoteAccess);
    assert_eq!(t.world.hosts[B].nic.counters().refused_key, 1);
}

#[test]
fn a_key_of_another_domain_is_refused() {
    let mut t = Pair::standard();
    let host = &mut t.world.hosts[B];
    let other = host.nic.alloc_pd().unwrap();
    let key = host.nic.reg_mr(other, t.regions[B].init(Access::all())).unwrap();
    let to = RemoteAddress { rkey: key, ..t.remote(B, 0) };
    t.ask(A, SendOp::Read { from: to }, 0, 10);
    t.run();
    // Expect: a remote access error, counted by its cause.
    assert_refused(&mut t, Nak::RemoteAccess, Status::RemoteAccess);
    assert_eq!(t.world.hosts[B].nic.counters().refused_domain, 1);
}

#[test]
fn an_access_out_of_bounds_is_refused_and_writes_nothing() {
    let mut t = Pair::standard();
    let to = t.remote(B, (1 << 20) - 4000);
    t.fill(A, 0, 5000);
    let before = t.bytes(B, (1 << 20) - 4000, 4000);
    t.ask(A, SendOp::Write { to, imm: None }, 0, 5000);
    t.run();
    // Expect: nothing is written, not even the part within the region.
    assert_refused(&mut t, Nak::RemoteAccess, Status::RemoteAccess);
    assert_eq!(t.bytes(B, (1 << 20) - 4000, 4000), before);
    assert_eq!(t.world.hosts[B].nic.counters().refused_bounds, 1);
}

#[test]
fn missing_permissions_are_refused() {
    // Expect: for each kind of access, the permissions of both the region and the queue pair are
    // needed.
    let region = Access::LOCAL_WRITE | Access::REMOTE_READ;
    let cases: [(Access, Access, usize); 4] = [
        (region, Access::all(), 0),
        (region, Access::all(), 2),
        (Access::all(), Access::REMOTE_WRITE | Access::REMOTE_ATOMIC, 1),
        (Access::all(), Access::REMOTE_WRITE, 2),
    ];
    for (region, qp, verb) in cases {
        let connect = ConnectOptions { access: qp, ..ConnectOptions::default() };
        let mut t = Pair::new(&PairOptions { access: region, connect, ..PairOptions::default() });
        match verb {
            0 => t.write(A, 0, 0, 10),
            1 => t.read(A, 0, 0, 10),
            _ => t.fetch_add(A, 0, 1, 0),
        };
        t.run();
        assert_refused(&mut t, Nak::RemoteAccess, Status::RemoteAccess);
        assert_eq!(t.world.hosts[B].nic.counters().refused_permission, 1);
    }
}

#[test]
fn op_codes_out_of_order_are_refused() {
    use Position::{First, Last, Middle, Only};
    let orders: [&[(Operation, Position)]; 5] = [
        &[(Operation::Write, Middle)],
        &[(Operation::Send, Last)],
        &[(Operation::Write, First), (Operation::Write, Only)],
        &[(Operation::Write, First), (Operation::Send, Last)],
        &[(Operation::Write, First), (Operation::ReadRequest, Only)],
    ];
    for order in orders {
        let mut t = Pair::standard();
        t.receive(B, 100_000, 10_000);
        let RemoteAddress { addr, rkey } = t.remote(B, 0);
        let ext = Extensions { reth: Reth { addr, rkey, len: 4096 }, ..Extensions::default() };
        for (i, &(operation, position)) in order.iter().enumerate() {
            let payload = if operation == Operation::ReadRequest { 0 } else { 1024 };
            t.forge(A, 100 + i as u32, op(operation, position), &ext, &vec![1; payload]);
            t.run();
        }
        // Expect: an invalid request error ends the connection.
        assert_eq!(t.seen(|p| p.is_nak(Nak::InvalidRequest)).len(), 1, "{order:?}");
        assert_eq!(t.ends[B].state(&t.world), State::Error);
        assert_eq!(t.received(B).len(), 1, "the receive element must come back");
        t.tear_down();
    }
}

#[test]
fn wrong_lengths_are_refused() {
    use Position::{First, Last, Only};
    // Expect: FIRST must be full, LAST must not be empty, and the lengths must add up to that of
    // the RETH.
    let messages: [&[(Position, usize)]; 5] = [
        &[(First, 1000)],
        &[(First, 1024), (Last, 0)],
        &[(First, 1024), (Last, 900)],
        &[(Only, 999)],
        &[(Only, 1028)],
    ];
    for message in messages {
        let mut t = Pair::standard();
        let RemoteAddress { addr, rkey } = t.remote(B, 0);
        let ext = Extensions { reth: Reth { addr, rkey, len: 2000 }, ..Extensions::default() };
        for (i, &(position, len)) in message.iter().enumerate() {
            t.forge(A, 100 + i as u32, op(Operation::Write, position), &ext, &vec![1; len]);
        }
        t.run();
        assert_eq!(t.seen(|p| p.is_nak(Nak::InvalidRequest)).len(), 1, "{message:?}");
    }
}

/// No message is longer than 2^31 bytes, whatever its key opens.
#[test]
fn a_length_beyond_that_of_a_message_is_refused() {
    let kernels = ConnectOptions { dialect: Dialect::KERNELS, ..ConnectOptions::default() };
    let lossy = ConnectOptions { dialect: Dialect::LOSSY, ..ConnectOptions::default() };
    let first_of = |operation| (op(operation, Position::First), ConnectOptions::default());
    let cases = [
        first_of(Operation::Write),
        (Op::lookup(0x19, Dialect::KERNELS).unwrap(), kernels),
        (Op::lookup(0xE6, Dialect::LOSSY).unwrap(), lossy),
    ];
    for (op, connect) in cases {
        let mut t = Pair::new(&PairOptions { connect, ..PairOptions::default() });
        let RemoteAddress { addr, rkey } = t.remote(B, 0);
        let reth = Reth { addr, rkey, len: (1 << 31) + 1 };
        let ext = Extensions { reth, leth: Some(Leth::default()), ..Extensions::default() };
        t.forge(A, 100, op, &ext, &[1; 1024]);
        t.run();
        assert_eq!(t.seen(|p| p.is_nak(Nak::InvalidRequest)).len(), 1, "{}", op.name);
    }
}

#[test]
fn a_message_too_long_for_its_receive_element_is_refused() {
    let mut t = Pair::standard();
    t.receive(B, 0, 2000);
    t.receive(B, 4000, 2000);
    let before = t.bytes(B, 2000, 2000);
    t.send(A, 0, 2001);
    t.run();
    // Expect: an invalid request error; the receiver gets a length error, and nothing is written
    // beyond the element.
    assert_refused(&mut t, Nak::InvalidRequest, Status::RemoteInvalidRequest);
    let ended: Vec<Status> = t.received(B).iter().map(|c| c.status).collect();
    assert_eq!(ended, [Status::LocalLength, Status::Flushed]);
    assert_eq!(t.bytes(B, 2000, 2000), before);
    t.tear_down();
}

#[test]
fn more_reads_than_agreed_are_refused() {
    let connect = ConnectOptions { max_dest_rd_atomic: 2, ..ConnectOptions::default() };
    let mut t = Pair::new(&PairOptions { connect, ..PairOptions::default() });
    // All requests arrive as one batch, before B answers the first.
    t.world.driver.receive_delay = core::time::Duration::from_micros(1);
    let RemoteAddress { addr, rkey } = t.remote(B, 0);
    let ext = Extensions { reth: Reth { addr, rkey, len: 8 }, ..Extensions::default() };
    for psn in 100..103 {
        t.forge(A, psn, op(Operation::ReadRequest, Position::Only), &ext, &[]);
    }
    t.run();
    // Expect: the third request ends the connection.
    assert_eq!(t.world.hosts[B].nic.counters().refused_too_many_reads, 1);
    assert_eq!(t.seen(|p| p.is_nak(Nak::InvalidRequest)).len(), 1);
    assert_eq!(t.ends[B].state(&t.world), State::Error);
    t.tear_down();
}

#[test]
fn an_atomic_off_its_alignment_is_refused() {
    let mut t = Pair::standard();
    t.fetch_add(A, 4, 1, 0);
    t.run();
    // Expect: an invalid request error.
    assert_refused(&mut t, Nak::InvalidRequest, Status::RemoteInvalidRequest);
}

#[test]
fn memory_that_cannot_be_reached_is_an_operational_error() {
    let mut t = Pair::standard();
    let place = t.regions[B].pieces(0, 8)[0].clone();
    t.world.hosts[B].memory.break_range(place);
    t.fetch_add(A, 0, 1, 0);
    t.run();
    // Expect: the peer gets a remote operational error.
    assert_refused(&mut t, Nak::RemoteOperational, Status::RemoteOperation);
    assert_eq!(t.world.hosts[B].nic.counters().refused_memory, 1);
}

#[test]
fn strom_op_codes_need_an_agreement() {
    let rpc = Op::lookup(0x18, Dialect::KERNELS).unwrap();
    let mut t = Pair::standard();
    t.forge(A, 100, rpc, &Extensions::default(), &[1; 16]);
    t.run();
    // Expect: an invalid request error, since a standard queue pair does not know the op-code.
    assert_eq!(t.seen(|p| p.is_nak(Nak::InvalidRequest)).len(), 1);
    assert_eq!(t.world.hosts[B].nic.counters().drop_opcode, 1);
    let connect = ConnectOptions { dialect: Dialect::KERNELS, ..ConnectOptions::default() };
    let mut t = Pair::new(&PairOptions { connect, ..PairOptions::default() });
    let reth = Reth { len: 16, ..Reth::default() };
    t.forge(A, 100, rpc, &Extensions { reth, ..Extensions::default() }, &[1; 16]);
    t.run();
    // Expect: with the agreement, the call itself is refused.
    assert_eq!(t.world.hosts[B].nic.counters().refused_bad_call, 1);
}

#[test]
fn an_unknown_op_code_ends_the_connection_only_with_the_expected_psn_from_the_peer() {
    let unknown = Op { code: 0x1F, ..*op(Operation::Acknowledge, Position::Only) };
    let mut t = Pair::standard();
    t.forge(A, 99, &unknown, &Extensions::default(), &[]);
    let dest_qp = t.ends[B].qpn;
    let bth = Bth { dest_qp, psn: Psn::new(100), ..Bth::ours() };
    let stranger = "10.9.9.9".parse().unwrap();
    let wire = Wire::craft((stranger, address(B)), &bth, &unknown, &Extensions::default(), &[]);
    t.world.inject(wire);
    t.run();
    // Expect: a wrong PSN or a packet from another host does no harm.
    assert_eq!(t.ends[B].state(&t.world), State::Rts);
    assert_eq!(t.world.hosts[B].nic.counters().drop_wrong_source, 1);
    t.forge(A, 100, &unknown, &Extensions::default(), &[]);
    t.run();
    // Expect: the expected PSN with an unknown op-code is an invalid request.
    assert_eq!(t.ends[B].state(&t.world), State::Error);
}

#[test]
fn a_read_of_a_region_that_is_gone_ends_the_connection() {
    let options = PairOptions { config: |c| c.burst_bytes = 1024, ..PairOptions::default() };
    let mut t = Pair::new(&options);
    t.read(A, 0, 200_000, 20_000);
    while t.seen(|p| p.is(Operation::ReadRequest)).is_empty() {
        t.world.step();
    }
    // The request is sent, and its region is deregistered before it arrives.
    let key = t.regions[B].key;
    t.world.hosts[B].nic.dereg_mr(key).unwrap();
    t.run();
    // Expect: a remote access error, and no data.
    assert_refused(&mut t, Nak::RemoteAccess, Status::RemoteAccess);
    assert!(t.seen(|p| p.is(Operation::ReadResponse)).is_empty());
}

#[test]
fn a_repeated_read_of_a_region_that_is_gone_ends_its_requester() {
    let mut t = Pair::standard();
    t.rule(Rule::nth(3, Fate::Drop, |p| p.is(Operation::ReadResponse)));
    t.rule(Rule::all(Fate::Delay(core::time::Duration::from_micros(50)), |p| {
        p.is(Operation::ReadRequest)
    }));
    t.read(A, 0, 200_000, 5000);
    while t.seen(|p| p.is(Operation::ReadRequest)).len() < 2 {
        t.world.step();
    }
    let key = t.regions[B].key;
    t.world.hosts[B].nic.dereg_mr(key).unwrap();
    t.run();
    // Expect: a NAK for the repetition, with the missing PSN, which ends the request.
    let naks = t.seen(|p| p.is_nak(Nak::RemoteAccess));
    assert_eq!(naks.iter().map(|nak| nak.bth.psn.value()).collect::<Vec<_>>(), [102]);
    assert_eq!(statuses(&t.sent(A)), [Status::RemoteAccess]);
    assert_eq!(t.ends[A].state(&t.world), State::Error);
}

/// A peer that has its answer may get a late copy of its request refused: it heeds no such NAK.
#[test]
fn a_late_copy_of_a_read_of_a_region_that_is_gone_harms_nobody() {
    let mut t = Pair::standard();
    let expected = t.fill(B, 0, 3000);
    let nic = &mut t.world.hosts[B].nic;
    let rkey = nic.reg_mr(t.ends[B].pd, t.regions[B].init(Access::all())).unwrap();
    let from = RemoteAddress { rkey, ..t.remote(B, 0) };
    t.ask(A, SendOp::Read { from }, 0, 3000);
    t.run();
    t.world.hosts[B].nic.dereg_mr(rkey).unwrap();
    let ext =
        Extensions { reth: Reth { addr: from.addr, rkey, len: 3000 }, ..Extensions::default() };
    t.receive(B, 10_000, 100);
    t.world.driver.receive_delay = core::time::Duration::from_micros(1);
    t.forge(A, 100, op(Operation::ReadRequest, Position::Only), &ext, &[]);
    t.send(A, 5000, 100);
    t.run();
    // Expect: the copy is refused by its own PSN, and the SEND behind it is done.
    let naks = t.seen(|p| p.is_nak(Nak::RemoteAccess));
    assert_eq!(naks.iter().map(|nak| nak.bth.psn.value()).collect::<Vec<_>>(), [100]);
    assert_eq!(statuses(&t.sent(A)), [Status::Success; 2]);
    assert_eq!(statuses(&t.received(B)), [Status::Success]);
    assert!(t.bytes(A, 0, 3000) == expected);
    assert_eq!((t.events(B), t.ends[B].state(&t.world)), (vec![], State::Rts));
    t.tear_down();
}

#[test]
fn a_send_that_invalidates_ends_the_key() {
    let mut t = Pair::standard();
    let key = t.regions[B].key;
    let host = &mut t.world.hosts[B];
    let other = host.nic.reg_mr(t.ends[B].pd, t.regions[B].init(Access::all())).unwrap();
    t.receive(B, 0, 100);
    t.ask(A, SendOp::SendInvalidate { rkey: other }, 0, 100);
    t.run();
    // Expect: the receiver's completion has the invalidated key.
    let got = t.received(B)[0];
    assert_eq!((got.status, got.imm_or_key), (Status::Success, other));
    t.sent(A);
    t.ask(
        A,
        SendOp::Write { to: RemoteAddress { rkey: other, ..t.remote(B, 0) }, imm: None },
        0,
        10,
    );
    t.run();
    // Expect: the key gives no access any more, but can still be deregistered.
    assert_refused(&mut t, Nak::RemoteAccess, Status::RemoteAccess);
    t.world.hosts[B].nic.dereg_mr(other).unwrap();
    assert_ne!(key, other);
    t.tear_down();
}

/// A SEND ends a key only when all that was read by it before has left.
#[test]
fn a_read_is_answered_before_a_later_send_ends_its_key() {
    for window in [false, true] {
        let mut t = Pair::standard();
        // What arrives within a microsecond is one batch, before B answers the first.
        t.world.driver.receive_delay = core::time::Duration::from_micros(1);
        let expected = t.fill(B, 0, 100_000);
        let mut from = t.remote(B, 0);
        if window {
            let nic = &mut t.world.hosts[B].nic;
            let key = next_key(nic.alloc_mw(t.ends[B].pd, MwType::Type2).unwrap());
            let (lkey, access) = (from.rkey, Access::REMOTE_READ);
            let to = MwBinding { lkey, addr: from.addr, len: 100_000, access, zero_based: false };
            t.post(B, SendOp::BindMw { key, to }, Data::Sges(&[]), SendFlags::empty());
            t.run();
            from.rkey = key;
        }
        t.receive(B, 200_000, 2000);
        t.ask(A, SendOp::Read { from }, 0, 100_000);
        t.ask(A, SendOp::SendInvalidate { rkey: from.rkey }, 200_000, 2000);
        t.write(A, 200_000, 300_000, 10);
        t.run();
        // Expect: all are done, each once, and the SEND tells the key that it has ended.
        let sent = statuses(&t.sent(A));
        let still = if window { Status::Success } else { Status::RemoteAccess };
        assert_eq!(sent, [Status::Success, Status::Success, still]);
        assert!(t.bytes(A, 0, 100_000) == expected);
        let got = t.received(B)[0];
        let told = (got.status, got.len, got.imm_or_key);
        assert_eq!(told, (Status::Success, 2000, from.rkey));
    }
}

#[test]
fn invalidating_a_key_that_does_not_allow_it_is_refused() {
    let access = Access::all().difference(Access::REMOTE_INVALIDATE);
    let mut t = Pair::new(&PairOptions { access, ..PairOptions::default() });
    t.receive(B, 0, 100);
    let rkey = t.regions[B].key;
    t.ask(A, SendOp::SendInvalidate { rkey }, 0, 100);
    t.run();
    // Expect: a remote access error, and the receive element comes back with an error.
    assert_refused(&mut t, Nak::RemoteAccess, Status::RemoteAccess);
    assert_ne!(t.received(B)[0].status, Status::Success);
    t.tear_down();
}

#[test]
fn compare_and_swap_swaps_only_what_it_compares() {
    let mut t = Pair::standard();
    t.set(B, 0, &7u64.to_ne_bytes());
    let at = t.remote(B, 0);
    t.ask(A, SendOp::CompareSwap { at, compare: 7, swap: 9 }, 0, 8);
    t.ask(A, SendOp::CompareSwap { at, compare: 7, swap: 11 }, 8, 8);
    t.run();
    // Expect: the first request swaps, the second only returns the value.
    assert_eq!((t.word(A, 0), t.word(A, 8), t.word(B, 0)), (7, 9, 9));
    let atomic = AtomicEth { addr: at.addr, rkey: at.rkey, swap_add: 1, compare: 9 };
    let ext = Extensions { atomic, ..Extensions::default() };
    t.forge(A, 101, op(Operation::CompareSwap, Position::Only), &ext, &[]);
    t.run();
    // Expect: a duplicate PSN is not executed, whatever it asks for.
    assert_eq!(t.word(B, 0), 9);
}

/// If the answer to an atomic is lost, no other acknowledge may complete the atomic. (soft-RoCE
/// accepts a plain acknowledge with the atomic's PSN, and completes it without a result.)
#[test]
fn an_atomic_is_acknowledged_by_its_answer_only() {
    let mut t = Pair::standard();
    let at = t.remote(B, 0);
    let atomic = AtomicEth { addr: at.addr, rkey: at.rkey, swap_add: 1, compare: 0 };
    let ext = Extensions { atomic, ..Extensions::default() };
    forge_write(&mut t, 100, &[7; 8]);
    t.run();
    t.forge(A, 101, op(Operation::FetchAdd, Position::Only), &ext, &[]);
    t.forge(A, 102, op(Operation::FetchAdd, Position::Only), &ext, &[]);
    t.run();
    // The WRITE before them is repeated: its acknowledge covers only PSNs before the atomics.
    forge_write(&mut t, 100, &[7; 8]);
    t.run();
    let acks: Vec<u32> = t.seen(|p| p.is_ack()).iter().map(|a| a.bth.psn.value()).collect();
    assert_eq!(acks, [100, 100]);
}

#[test]
fn write_with_immediate_waits_for_a_receive_element() {
    let mut t = Pair::standard();
    let bytes = t.fill(A, 0, 3000);
    let to = t.remote(B, 10_000);
    let (sge, flags) = (t.sge(A, 0, 3000), SendFlags::SIGNALED);
    t.post(A, SendOp::Write { to, imm: Some(0xABCD) }, Data::Sges(&[sge]), flags);
    t.world.run(core::time::Duration::from_micros(50));
    t.receive(B, 0, 0);
    t.run();
    // Expect: the receiver gets one completion with length and immediate data.
    let got = t.received(B);
    assert_eq!((got.len(), got[0].len, got[0].imm_or_key), (1, 3000, 0xABCD));
    assert_eq!(t.bytes(B, 10_000, 3000), bytes);
    t.tear_down();
}

#[test]
fn a_read_is_answered_before_a_later_request_is_refused() {
    let mut t = Pair::standard();
    let expected = t.fill(B, 0, 100_000);
    let mut foreign = t.remote(B, 0);
    foreign.rkey ^= 1;
    let read = t.read(A, 0, 0, 100_000);
    t.ask(A, SendOp::Write { to: foreign, imm: None }, 0, 10);
    t.run();
    // Expect: both requests arrive together; the READ is answered in full, and the NAK follows.
    let done = t.sent(A);
    assert_eq!((done[0].wr_id, done[0].status), (read, Status::Success));
    assert_eq!(done[1].status, Status::RemoteAccess);
    assert_eq!(t.bytes(A, 0, 100_000), expected);
    assert_eq!(t.ends[B].state(&t.world), State::Error);
}

/// What comes after a refusal, while the answers before it leave, changes nothing about it.
#[test]
fn a_refusal_is_not_replaced_by_one_of_an_unknown_op_code() {
    let mut t = Pair::standard();
    // All requests arrive as one batch, before B answers the first.
    t.world.driver.receive_delay = core::time::Duration::from_micros(1);
    let RemoteAddress { addr, rkey } = t.remote(B, 0);
    let with = |rkey| Extensions { reth: Reth { addr, rkey, len: 8 }, ..Extensions::default() };
    t.forge(A, 100, op(Operation::ReadRequest, Position::Only), &with(rkey), &[]);
    t.forge(A, 101, op(Operation::Write, Position::Only), &with(rkey ^ 1), &[1; 8]);
    let unknown = Op { code: 0x1F, ..*op(Operation::Acknowledge, Position::Only) };
    t.forge(A, 101, &unknown, &Extensions::default(), &[]);
    t.run();
    // Expect: the NAK and the event of the WRITE, and no others.
    assert_eq!(t.seen(|p| p.is_nak(Nak::RemoteAccess)).len(), 1);
    assert!(t.seen(|p| p.is_nak(Nak::InvalidRequest)).is_empty());
    assert_eq!(t.events(B), [Event::QpAccessError(t.ends[B].qpn)]);
}
