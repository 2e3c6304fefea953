//! Two hosts, one connection, and a region on each host: the smallest world, for directed tests.

use core::net::{IpAddr, Ipv4Addr};
use core::time::Duration;

use remora_nic::Config;
use remora_nic::queue::{
    Completion, Data, RecvRequest, RemoteAddress, SendFlags, SendOp, SendRequest, Sge, Status,
    UdDestination,
};
use remora_nic::wire::{Bth, Dialect, Extensions, Op, Transport};
use remora_nic::{Access, Event, Path, Psn};

use crate::dice::pattern;
use crate::endpoint::{ConnectOptions, Endpoint, QKEY, QueueOptions, connect};
use crate::faults::Rule;
use crate::link_faults::LinkOptions;
use crate::memory::{Layout, Region};
use crate::packet::{Seen, Wire};
use crate::world::{Host, World};

/// The first host, which sends most requests.
pub const A: usize = 0;
/// The second host, which answers most requests.
pub const B: usize = 1;

/// The options of a [`Pair`].
#[derive(Clone, Debug)]
pub struct PairOptions {
    /// The service.
    pub transport: Transport,
    /// The queues of both ends.
    pub queues: QueueOptions,
    /// The attributes of both ends.
    pub connect: ConnectOptions,
    /// The properties of the links.
    pub link: LinkOptions,
    /// The first PSNs that A and B send.
    pub psns: (u32, u32),
    /// The length of each region in bytes.
    pub region: u64,
    /// How the pages of the regions lie.
    pub layout: Layout,
    /// The access that the regions permit.
    pub access: Access,
    /// B uses a shared receive queue.
    pub srq: bool,
    /// Changes the configuration of both cards.
    pub config: fn(&mut Config),
}

impl Default for PairOptions {
    fn default() -> PairOptions {
        PairOptions {
            transport: Transport::Rc,
            queues: QueueOptions::default(),
            connect: ConnectOptions::default(),
            link: LinkOptions::default(),
            psns: (100, 5000),
            region: 1 << 20,
            layout: Layout::Contiguous,
            access: Access::all(),
            srq: false,
            config: |_| {},
        }
    }
}

/// Two connected hosts.
#[derive(Debug)]
pub struct Pair {
    /// The world.
    pub world: World,
    /// The queue pairs of A and B.
    pub ends: [Endpoint; 2],
    /// A region of A and a region of B.
    pub regions: [Region; 2],
    /// The address handles of A and B for each other.
    pub ahs: [u32; 2],
    next_wr_id: u64,
}

/// How requests have ended, in the order of their completions.
pub fn statuses(entries: &[Completion]) -> Vec<Status> {
    entries.iter().map(|entry| entry.status).collect()
}

/// The address of host `i`.
pub fn address(i: usize) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, (i >> 8) as u8, i as u8 + 1))
}

impl Pair {
    /// A connected pair with a trace of its packets.
    ///
    /// # Panics
    /// If a card refuses a valid request.
    pub fn new(options: &PairOptions) -> Pair {
        Pair::seeded(options, 7)
    }

    /// Like [`Pair::new`], with `seed` for its random choices.
    ///
    /// # Panics
    /// If a card refuses a valid request.
    pub fn seeded(options: &PairOptions, seed: u64) -> Pair {
        let mut world = World::new(seed, options.link);
        world.network.trace = Some(Vec::new());
        let made = [A, B].map(|i| {
            let mut config = Config::new(address(i));
            config.translation_entries = 1 << 20;
            (options.config)(&mut config);
            world.add_host(config);
            Pair::furnish(&mut world, i, options)
        });
        let ends = [made[A].0, made[B].0];
        let psns = (Psn::new(options.psns.0), Psn::new(options.psns.1));
        connect(&mut world, (&ends[A], &ends[B]), &options.connect, psns);
        let ahs = [made[A].2, made[B].2];
        let regions = made.map(|(_, region, _)| region);
        Pair { world, ends, regions, ahs, next_wr_id: 1 }
    }

    fn furnish(world: &mut World, i: usize, options: &PairOptions) -> (Endpoint, Region, u32) {
        let mut dice = world.dice().fork();
        let host = &mut world.hosts[i];
        let pd = host.nic.alloc_pd().expect("room for a protection domain");
        let mut region =
            Region::lay_out(&mut host.memory, &mut dice, options.region, options.layout);
        region.key = host.nic.reg_mr(pd, region.init(options.access)).expect("room for a region");
        let srq = (options.srq && i == B).then(|| {
            let QueueOptions { receives, sges, .. } = options.queues;
            let ring = crate::endpoint::ring(host, receives, sges, 0);
            host.nic.create_srq(pd, ring).expect("room for a shared receive queue")
        });
        let path = Path::new(address(1 - i), 1);
        let ah = host.nic.create_ah(pd, path).expect("room for an address handle");
        let end = Endpoint::create(world, (i, pd), options.transport, &options.queues, srq);
        (end, region, ah)
    }

    /// A pair with the default options.
    pub fn standard() -> Pair {
        Pair::new(&PairOptions::default())
    }

    /// A pair that has agreed to this dialect.
    ///
    /// # Panics
    /// As [`Pair::new`].
    pub fn of_dialect(dialect: Dialect) -> Pair {
        let connect = ConnectOptions { dialect, ..ConnectOptions::default() };
        Pair::new(&PairOptions { connect, ..PairOptions::default() })
    }

    /// Adds a rule to the network.
    pub fn rule(&mut self, rule: Rule) {
        self.world.network.rule(rule);
    }

    /// The memory of the peer of `of`, starting at `offset` of its region.
    pub fn remote(&self, of: usize, offset: u64) -> RemoteAddress {
        let Region { key, iova, .. } = self.regions[of];
        RemoteAddress { addr: iova + offset, rkey: key }
    }

    /// A scatter/gather entry in the region of `of`.
    pub fn sge(&self, of: usize, offset: u64, len: u32) -> Sge {
        let Region { key, iova, .. } = self.regions[of];
        Sge { addr: iova + offset, len, lkey: key }
    }

    /// The destination of datagrams from `of` to its peer.
    pub fn to_peer(&self, of: usize) -> UdDestination {
        UdDestination { ah: self.ahs[of], qpn: self.ends[1 - of].qpn, qkey: QKEY }
    }

    /// Posts a send request; returns its `wr_id`.
    ///
    /// # Panics
    /// If the card refuses the request.
    pub fn post(&mut self, of: usize, op: SendOp, data: Data<'_>, flags: SendFlags) -> u64 {
        let wr_id = self.next_wr_id;
        self.next_wr_id += 1;
        let request = SendRequest { wr_id, op, data, flags };
        self.ends[of].post_send(&mut self.world, &request).expect("a good work request");
        wr_id
    }

    /// Posts a signaled request with `len` bytes at `offset` of the region of `of` as its data.
    pub fn ask(&mut self, of: usize, op: SendOp, offset: u64, len: u32) -> u64 {
        let sge = self.sge(of, offset, len);
        self.post(of, op, Data::Sges(&[sge]), SendFlags::SIGNALED)
    }

    /// Posts a WRITE of `len` bytes from `from` in the region of `of` to `to` in the peer's.
    pub fn write(&mut self, of: usize, from: u64, to: u64, len: u32) -> u64 {
        let to = self.remote(1 - of, to);
        self.ask(of, SendOp::Write { to, imm: None }, from, len)
    }

    /// Posts a READ of `len` bytes from `from` in the peer's region to `to` in that of `of`.
    pub fn read(&mut self, of: usize, from: u64, to: u64, len: u32) -> u64 {
        let from = self.remote(1 - of, from);
        self.ask(of, SendOp::Read { from }, to, len)
    }

    /// Posts a SEND of `len` bytes from `from` in the region of `of`.
    pub fn send(&mut self, of: usize, from: u64, len: u32) -> u64 {
        let ud = self.ends[of].transport == Transport::Ud;
        let to = ud.then(|| self.to_peer(of));
        self.ask(of, SendOp::Send { imm: None, to }, from, len)
    }

    /// Posts a fetch-and-add on the word at `at` of the peer's region. The original goes to `to`.
    pub fn fetch_add(&mut self, of: usize, at: u64, add: u64, to: u64) -> u64 {
        let at = self.remote(1 - of, at);
        self.ask(of, SendOp::FetchAdd { at, add }, to, 8)
    }

    /// Posts a receive request for `len` bytes at `offset`; returns its `wr_id`.
    ///
    /// # Panics
    /// If the card refuses the request.
    pub fn receive(&mut self, of: usize, offset: u64, len: u32) -> u64 {
        let wr_id = self.next_wr_id;
        self.next_wr_id += 1;
        let sges = [self.sge(of, offset, len)];
        let request = RecvRequest { wr_id, sges: &sges };
        self.ends[of].post_recv(&mut self.world, &request).expect("a good receive request");
        wr_id
    }

    /// Writes a pattern into the region of `of`, and returns it.
    pub fn fill(&mut self, of: usize, offset: u64, len: u64) -> Vec<u8> {
        let bytes = pattern(offset ^ len << 20 ^ of as u64, len as usize);
        self.set(of, offset, &bytes);
        bytes
    }

    /// Writes `bytes` into the region of `of`, as its host would.
    pub fn set(&mut self, of: usize, offset: u64, bytes: &[u8]) {
        self.regions[of].write(&mut self.world.hosts[of].memory, offset, bytes);
    }

    /// `len` bytes of the region of `of`, starting at `offset`.
    pub fn bytes(&self, of: usize, offset: u64, len: u64) -> Vec<u8> {
        self.regions[of].read(&self.world.hosts[of].memory, offset, len)
    }

    /// The word at `offset` of the region of `of`.
    pub fn word(&self, of: usize, offset: u64) -> u64 {
        let bytes = self.bytes(of, offset, 8);
        u64::from_ne_bytes(bytes.try_into().expect("8 bytes were read"))
    }

    /// Runs the world until it is quiet.
    ///
    /// # Panics
    /// If it is not quiet after a minute of simulated time.
    pub fn run(&mut self) {
        assert!(
            self.world.run(Duration::from_secs(60)),
            "the world is not quiet after a simulated minute"
        );
    }

    /// Takes the send completions of `of`.
    pub fn sent(&mut self, of: usize) -> Vec<Completion> {
        Endpoint::drain(&mut self.world, of, self.ends[of].send_cq)
    }

    /// Takes the receive completions of `of`.
    pub fn received(&mut self, of: usize) -> Vec<Completion> {
        Endpoint::drain(&mut self.world, of, self.ends[of].recv_cq)
    }

    /// Takes the events of `of`.
    pub fn events(&mut self, of: usize) -> Vec<Event> {
        self.world.take_events(of)
    }

    /// The packets sent so far that match.
    pub fn seen(&self, matches: impl Fn(&Seen) -> bool) -> Vec<Seen> {
        let trace = self.world.network.trace.iter().flatten();
        trace.filter(|seen| matches(seen)).cloned().collect()
    }

    /// Empties the trace of packets.
    pub fn forget(&mut self) {
        self.world.network.trace = Some(Vec::new());
    }

    /// Sends a forged packet that claims to come from `of` to its peer.
    pub fn forge(&mut self, of: usize, psn: u32, op: &Op, ext: &Extensions, payload: &[u8]) {
        let dest_qp = self.ends[1 - of].qpn;
        let bth = Bth { dest_qp, psn: Psn::new(psn), ack_req: true, ..Bth::ours() };
        let wire = Wire::craft((address(of), address(1 - of)), &bth, op, ext, payload);
        self.world.inject(wire);
    }

    /// Destroys all objects.
    ///
    /// # Panics
    /// If an object is left over on a card.
    pub fn tear_down(mut self) {
        self.destroy();
    }

    /// As [`Pair::tear_down`], and keeps the world.
    ///
    /// # Panics
    /// If an object is left over on a card.
    pub fn destroy(&mut self) {
        for i in [A, B] {
            let Endpoint { qpn, send_cq, recv_cq, srq, pd, .. } = self.ends[i];
            let Host { nic, .. } = &mut self.world.hosts[i];
            nic.destroy_qp(qpn).expect("it is there");
            nic.destroy_cq(send_cq).expect("no queue reports to it");
            nic.destroy_cq(recv_cq).expect("no queue reports to it");
            if let Some(srq) = srq {
                nic.destroy_srq(srq).expect("no queue pair takes from it");
            }
            nic.destroy_ah(self.ahs[i]).expect("it is there");
            // A key that a SEND with invalidate has ended still names its region.
            nic.dereg_mr(self.regions[i].key).expect("it is there");
            nic.dealloc_pd(pd).expect("no object belongs to it");
            assert_eq!(
                nic.in_use(),
                remora_nic::nic::InUse::default(),
                "objects are left over at host {i}"
            );
        }
    }
}
