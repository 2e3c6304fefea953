//! Passes: when the card lets the owner of a queue carry out requests itself, and from when on no
//! longer.

use core::time::Duration;

use remora_nic::kernel::Bound;
use remora_nic::nic::{Pass, PassEnd};
use remora_nic::qp::{QpAttr, State};
use remora_nic::queue::{
    Data, RecvRequest, RemoteAddress, SendFlags, SendOp, SendRequest, Sge, Status,
};
use remora_nic::wire::Transport;
use remora_nic::{Access, ChainLimits, Config, MrChange, Nic, Psn, Rate, RateLimits, Time};
use remora_sim::dice::Dice;
use remora_sim::endpoint::{ConnectOptions, Endpoint, QueueOptions};
use remora_sim::memory::{Layout, Region};
use remora_sim::{LinkOptions, World};

const LEN: u64 = 1 << 16;

/// A card, two of its queue pairs, and a region that both may use.
struct Rig {
    world: World,
    a: Endpoint,
    b: Endpoint,
    region: Region,
}

impl Rig {
    fn apart(local: bool) -> Rig {
        let mut world = World::new(3, LinkOptions::default());
        let mut config = Config::new("fd00::7".parse().unwrap());
        config.local_shortcut = local;
        world.add_host(config);
        let host = &mut world.hosts[0];
        let pd = host.nic.alloc_pd().unwrap();
        let (dice, layout) = (&mut Dice::new(1), Layout::Contiguous);
        let mut region = Region::lay_out(&mut host.memory, dice, LEN, layout);
        region.key = host.nic.reg_mr(pd, region.init(Access::all())).unwrap();
        let queues = QueueOptions { signal_all: true, ..QueueOptions::default() };
        let [a, b] =
            [(); 2].map(|()| Endpoint::create(&mut world, (0, pd), Transport::Rc, &queues, None));
        Rig { world, a, b, region }
    }

    fn connected_by(local: bool, options: &ConnectOptions) -> Rig {
        let mut rig = Rig::apart(local);
        rig.a.bring_up(&mut rig.world, &rig.b, options, (Psn::new(1), Psn::new(2)));
        rig.b.bring_up(&mut rig.world, &rig.a, options, (Psn::new(2), Psn::new(1)));
        rig
    }

    fn connected() -> Rig {
        Rig::connected_by(true, &ConnectOptions::default())
    }

    fn nic(&mut self) -> &mut Nic {
        &mut self.world.hosts[0].nic
    }

    fn pass(&mut self) -> Option<Pass> {
        let (qpn, key) = (self.a.qpn, self.region.key);
        self.nic().pass(qpn, key)
    }

    fn writes(&mut self) -> Status {
        let Region { iova, key, .. } = self.region;
        let sges = [Sge { addr: iova, len: 100, lkey: key }];
        let op = SendOp::Write { to: RemoteAddress { addr: iova + 1000, rkey: key }, imm: None };
        let (data, flags) = (Data::Sges(&sges), SendFlags::empty());
        let request = SendRequest { wr_id: 1, op, data, flags };
        self.a.post_send(&mut self.world, &request).unwrap();
        self.world.run(Duration::from_secs(1));
        Endpoint::drain(&mut self.world, 0, self.a.send_cq)[0].status
    }
}

#[test]
fn a_pass_is_for_a_whole_region_of_a_peer_on_the_card() {
    let mut rig = Rig::connected();
    let (iova, dest_qp) = (rig.region.iova, rig.b.qpn);
    let pass = rig.pass().unwrap();
    let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
    assert_eq!((pass.dest_qp, pass.iova, pass.len, pass.access), (dest_qp, iova, LEN, access));
    let (qpn, key) = (rig.a.qpn, rig.region.key);
    assert_eq!(rig.nic().pass(qpn, key ^ 0x100), None);
    assert_eq!(rig.nic().pass(0xff_ffff, key), None);
    // It stands beside requests that go by the card.
    assert_eq!(rig.writes(), Status::Success);
    assert_eq!(rig.pass(), Some(pass));
    assert_eq!(rig.nic().poll_pass_end(), None, "nothing has changed");
}

#[test]
fn there_is_none_where_something_would_take_part() {
    assert_eq!(Rig::apart(true).pass(), None, "nobody is connected");
    let options = ConnectOptions::default();
    assert_eq!(Rig::connected_by(false, &options).pass(), None, "packets leave the card");
    let mut half = Rig::apart(true);
    half.a.bring_up(&mut half.world, &half.b, &options, (Psn::new(1), Psn::new(2)));
    assert_eq!(half.pass(), None, "the peer is not ready");
    let mut rig = Rig::apart(true);
    rig.a.bring_up(&mut rig.world, &rig.b, &options, (Psn::new(1), Psn::new(2)));
    rig.b.bring_up(&mut rig.world, &rig.a, &options, (Psn::new(2), Psn::new(7)));
    assert_eq!(rig.pass(), None, "the ends do not agree on what was sent");
    let none = ConnectOptions { max_rd_atomic: 0, ..options };
    let only_writes = Rig::connected_by(true, &none).pass().map(|pass| pass.access);
    assert_eq!(only_writes, Some(Access::REMOTE_WRITE), "no READ may be outstanding");
    let mut own = Rig::apart(true);
    let (a, key) = (own.a.qpn, own.region.key);
    own.nic().loop_back(a, a, Access::all()).unwrap();
    assert_eq!(own.nic().pass(a, key), None, "loop-back is for chains");
    let mut tapped = Rig::connected();
    let b = tapped.b.qpn;
    tapped.nic().bind_kernel(Bound::Receive(b), 7).unwrap();
    assert_eq!(tapped.pass(), None, "a kernel sees WRITEs");
    tapped.nic().unbind_kernel(Bound::Receive(b)).unwrap();
    assert!(tapped.pass().is_some());
}

/// What ends a pass, and how the card tells.
type Ends = (&'static str, fn(&mut Rig), fn(&Rig) -> PassEnd);

const ENDS: [Ends; 13] = [
    ("deregistered", |rig| rig.world.hosts[0].nic.dereg_mr(rig.region.key).unwrap(), of_key),
    ("changed", changes, of_key),
    ("its peer fails", |rig| rig.b.go_to(&mut rig.world, State::Error), of_b),
    ("it fails", |rig| rig.a.go_to(&mut rig.world, State::Error), of_a),
    ("reset", |rig| rig.b.go_to(&mut rig.world, State::Reset), of_b),
    ("drains", |rig| rig.a.go_to(&mut rig.world, State::Sqd), of_a),
    ("destroyed", |rig| rig.world.hosts[0].nic.destroy_qp(rig.b.qpn).unwrap(), of_b),
    ("narrowed", narrows, of_b),
    ("limited", limits, of_a),
    ("of a limited client", limits_client, of_a),
    ("tapped", taps, of_a),
    ("traced", |rig| rig.nic().trace_chains(7), of_a),
    ("captured", |rig| rig.nic().set_local_shortcut(false), of_a),
];

fn of_key(rig: &Rig) -> PassEnd {
    PassEnd::Region(rig.region.key)
}

fn of_a(rig: &Rig) -> PassEnd {
    PassEnd::QueuePair(rig.a.qpn)
}

fn of_b(rig: &Rig) -> PassEnd {
    PassEnd::QueuePair(rig.b.qpn)
}

fn taps(rig: &mut Rig) {
    let to = Bound::Receive(rig.b.qpn);
    rig.nic().bind_kernel(to, 7).unwrap();
}

fn changes(rig: &mut Rig) {
    let (key, access) = (rig.region.key, Some(Access::all()));
    rig.nic().rereg_mr(key, MrChange { access, ..MrChange::default() }).unwrap();
}

fn narrows(rig: &mut Rig) {
    let access = Some(Access::REMOTE_READ);
    rig.b.modify(&mut rig.world, &QpAttr { access, ..QpAttr::default() });
}

fn limits(rig: &mut Rig) {
    let (qpn, rate) = (rig.a.qpn, Some(Rate { per_second: 1000, burst: 1 }));
    let limits = ChainLimits { rate, ..ChainLimits::default() };
    rig.nic().set_chain_limits(Time(0), qpn, limits).unwrap();
}

fn limits_client(rig: &mut Rig) {
    let elements = Some(Rate { per_second: 1000, burst: 1 });
    let limits = RateLimits { elements, ..RateLimits::default() };
    rig.nic().set_client_limits(Time(0), 0, limits).unwrap();
}

#[test]
fn what_changes_ends_it() {
    for (what, act, told) in ENDS {
        let mut rig = Rig::connected();
        assert!(rig.pass().is_some());
        act(&mut rig);
        let mut ends = Vec::new();
        while let Some(end) = rig.nic().poll_pass_end() {
            ends.push(end);
        }
        assert!(ends.contains(&told(&rig)), "{what}: {ends:?}");
        let again = rig.pass();
        assert_eq!(again.is_some(), matches!(what, "changed" | "narrowed"), "{what}: {again:?}");
    }
}

#[test]
fn a_key_that_a_peer_ends_ends_it() {
    let mut rig = Rig::connected();
    assert!(rig.pass().is_some());
    rig.b.post_recv(&mut rig.world, &RecvRequest { wr_id: 1, sges: &[] }).unwrap();
    let (rkey, flags) = (rig.region.key, SendFlags::empty());
    let op = SendOp::SendInvalidate { rkey };
    let request = SendRequest { wr_id: 1, op, data: Data::Sges(&[]), flags };
    rig.a.post_send(&mut rig.world, &request).unwrap();
    rig.world.run(Duration::from_secs(1));
    assert_eq!(rig.nic().poll_pass_end(), Some(PassEnd::Region(rkey)));
    assert_eq!(rig.pass(), None);
}

#[test]
fn a_request_that_the_peer_refuses_ends_it() {
    let mut rig = Rig::connected();
    assert!(rig.pass().is_some());
    let Region { iova, key, .. } = rig.region;
    let sges = [Sge { addr: iova, len: 8, lkey: key }];
    let op = SendOp::Write { to: RemoteAddress { addr: iova, rkey: key ^ 0x100 }, imm: None };
    let request = SendRequest { wr_id: 1, op, data: Data::Sges(&sges), flags: SendFlags::empty() };
    rig.a.post_send(&mut rig.world, &request).unwrap();
    rig.world.run(Duration::from_secs(1));
    let mut ends = [rig.nic().poll_pass_end(), rig.nic().poll_pass_end()];
    ends.sort_by_key(|end| matches!(end, Some(PassEnd::QueuePair(qpn)) if *qpn == rig.b.qpn));
    assert_eq!(ends, [Some(of_a(&rig)), Some(of_b(&rig))]);
}

#[test]
fn completions_that_the_owner_tells_of_wake_those_that_wait() {
    let mut rig = Rig::connected();
    let cq = rig.a.send_cq;
    let before = rig.nic().cq_count(cq).unwrap();
    let op = SendOp::Wait { cq, count: before + 5 };
    let request = SendRequest { wr_id: 9, op, data: Data::Sges(&[]), flags: SendFlags::empty() };
    rig.b.post_send(&mut rig.world, &request).unwrap();
    rig.world.run(Duration::from_secs(1));
    assert!(Endpoint::drain(&mut rig.world, 0, rig.b.send_cq).is_empty(), "it waits");
    rig.nic().count_completions(cq, 5);
    rig.world.run(Duration::from_secs(1));
    let done = Endpoint::drain(&mut rig.world, 0, rig.b.send_cq);
    assert_eq!(
        done.iter().map(|done| (done.wr_id, done.status)).collect::<Vec<_>>(),
        [(9, Status::Success)]
    );
}
