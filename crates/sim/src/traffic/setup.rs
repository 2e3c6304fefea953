//! Creates and destroys the hosts, regions, queues and connections of a random world.

use core::net::{IpAddr, Ipv4Addr};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use remora_nic::Config;
use remora_nic::qp::State;
use remora_nic::wire::Transport;
use remora_nic::{Access, Path, Pd};

use super::records::{Area, GRH, Group, HostState, Pool, Side, Stats, Traffic, WORDS};
use super::spans::Spans;
use crate::check::Violation;
use crate::check::memory::MemoryModel;
use crate::check::order::{ReceiveOrder, SendOrder};
use crate::dice::Dice;
use crate::endpoint::{self, Endpoint};
use crate::guests::Guests;
use crate::memory::{Layout, Region};
use crate::options::{ConnectionOptions, Options, least_shared};
use crate::world::{Host, World};

fn address(options: &Options, i: usize) -> IpAddr {
    let v4 = Ipv4Addr::new(10, 1, 0, i as u8 + 1);
    if options.ipv6 { IpAddr::V6(v4.to_ipv6_compatible()) } else { IpAddr::V4(v4) }
}

impl Traffic {
    /// Creates the world of `options`, its applications, and its guests.
    pub(crate) fn set_up(options: &Options) -> (World, Traffic, Guests) {
        let mut dice = Dice::new(options.seed ^ 0x7261_6666_6963);
        let mut world = World::new(options.seed, options.link);
        world.driver = options.driver;
        world.star = options.star;
        let mut traffic = Traffic {
            sides: Vec::new(),
            hosts: Vec::new(),
            pools: Vec::new(),
            groups: (0..options.groups).map(|number| Group::new(options, number)).collect(),
            words: BTreeMap::new(),
            options: options.clone(),
            rings: Vec::new(),
            unsettled: Vec::new(),
            unsettled_words: Vec::new(),
            dice: dice.fork(),
            next_id: 0,
            healed: false,
            stats: Stats::default(),
        };
        let pds: Vec<Pd> =
            (0..options.hosts).map(|i| traffic.add_host(&mut world, options, i)).collect();
        (0..options.hosts).for_each(|i| traffic.add_domain(&mut world, i));
        for connection in &options.connections {
            traffic.connect(&mut world, connection, &pds);
        }
        let (guests, used) = Guests::set_up(&mut world, &options.guests, options.seed);
        traffic.rings.extend(used);
        if let Some(kernels) = &options.kernels {
            for (i, host) in world.hosts.iter_mut().enumerate() {
                let of = traffic.sides.iter().filter(|side| side.end.host == i);
                let regions: Vec<&Region> = of.map(|side| &side.target.region).collect();
                host.nic.set_kernels(Box::new(super::calls::kernels(kernels, &regions)));
            }
        }
        for (i, host) in traffic.hosts.iter_mut().enumerate() {
            let memory = &world.hosts[i].memory;
            let mut ignored = host.words.pieces(0, host.words.len);
            ignored.extend(traffic.rings.iter().filter(|(h, _)| *h == i).map(|(_, r)| r.clone()));
            host.model = MemoryModel::new(i, memory, ignored);
        }
        (world, traffic, guests)
    }

    fn add_host(&mut self, world: &mut World, options: &Options, i: usize) -> Pd {
        let mut config = Config::new(address(options, i));
        config.translation_entries = 1 << 22;
        config.window_packets = options.window_packets;
        config.link_bits_per_second = options.link.bits_per_second;
        config.ack_every = options.ack_every;
        config.fetch_elements = options.fetch_elements;
        config.burst_bytes = options.burst_bytes;
        config.max_outstanding = options.max_outstanding;
        config.paths = options.paths;
        config.ecn = options.ecn;
        config.local_shortcut = options.local_shortcut;
        world.add_host(config);
        let host = &mut world.hosts[i];
        let pd = host.nic.alloc_pd().expect("room for a protection domain");
        let words = self.region(host, pd, 2 * WORDS * 8, Layout::Contiguous);
        words.write(&mut host.memory, 0, &[0; 2 * WORDS as usize * 8]);
        let before = host.memory.bytes().len() as u64;
        let ring = endpoint::ring(host, options.shared_receives, 4, 0);
        self.rings.push((i, before..ring.addr + ring.len() as u64));
        let srq = host.nic.create_srq(pd, ring).expect("room for a shared receive queue");
        let model = MemoryModel::new(i, &host.memory, Vec::new());
        let seen = HashMap::new();
        self.hosts.push(HostState { model, words, seen, srq, pd, domain: None });
        let ends = options.connections.iter().flat_map(|c| [(c, 0), (c, 1)]);
        let sharing = ends.filter(|(c, e)| c.hosts[*e] == i && c.shared[*e]).map(|(c, _)| c);
        let longest = sharing.map(|c| c.message_max).max().unwrap_or(0);
        self.add_shared_pool(host, pd, i, longest, options.shared_receives);
        pd
    }

    /// Adds buffers of a shared receive queue, for messages of at most this length in bytes.
    pub(super) fn add_shared_pool(
        &mut self,
        host: &mut Host,
        pd: Pd,
        i: usize,
        longest: u64,
        receives: u32,
    ) {
        let slot = longest + GRH;
        let least = least_shared(&self.options.connections);
        let slots = u64::from(receives).min(((4 << 20) / slot).max(least));
        self.add_pool(host, pd, i, (slot, slots), None);
    }

    fn region(&mut self, host: &mut Host, pd: Pd, len: u64, layout: Layout) -> Region {
        let mut region = Region::lay_out(&mut host.memory, &mut self.dice, len, layout);
        let init = region.init(Access::all().difference(Access::REMOTE_INVALIDATE));
        region.key = host.nic.reg_mr(pd, init).expect("room for a region");
        region
    }

    fn add_pool(
        &mut self,
        host: &mut Host,
        pd: Pd,
        i: usize,
        (slot, slots): (u64, u64),
        order: Option<ReceiveOrder>,
    ) {
        let region = self.region(host, pd, slot * slots, Layout::Contiguous);
        let free = (0..slots).collect();
        self.pools.push(Pool { region, slot, free, posted: HashMap::new(), order, host: i });
    }

    fn connect(&mut self, world: &mut World, options: &ConnectionOptions, pds: &[Pd]) {
        let first = self.sides.len();
        for e in [0, 1] {
            let side = self.add_side(world, options, e, pds);
            self.sides.push(side);
        }
        let (a, b) = (self.sides[first].end, self.sides[first + 1].end);
        endpoint::connect(world, (&a, &b), &options.connect, options.psns);
        for (s, group) in (first..).zip(options.groups) {
            self.enrol(world, s, group);
        }
    }

    /// Adds receive buffers for one queue pair; returns the index of their pool.
    fn add_own_pool(
        &mut self,
        host: &mut Host,
        pd: Pd,
        i: usize,
        options: &ConnectionOptions,
    ) -> usize {
        let pool = self.pools.len();
        let slot = options.message_max + GRH;
        let slots = u64::from(options.queues.receives).min(((4 << 20) / slot).max(2));
        self.add_pool(host, pd, i, (slot, slots), Some(ReceiveOrder::default()));
        pool
    }

    /// Creates a queue pair on host `i`, with its rings. Arms its completion queues if the
    /// application waits for events.
    fn add_end(
        &mut self,
        world: &mut World,
        options: &ConnectionOptions,
        (i, pd): (usize, Pd),
        srq: Option<u32>,
        is_target: bool,
    ) -> Endpoint {
        let before = world.hosts[i].memory.bytes().len() as u64;
        let end = if is_target {
            self.add_xrc_target(world, i)
        } else {
            Endpoint::create(world, (i, pd), options.transport, &options.queues, srq)
        };
        let after = world.hosts[i].memory.bytes().len() as u64;
        self.rings.push((i, before..after));
        if self.options.event_driven {
            for cq in [end.send_cq, end.recv_cq] {
                world.hosts[i].nic.req_notify_cq(cq, false).expect("it is there");
            }
        }
        end
    }

    fn add_side(
        &mut self,
        world: &mut World,
        options: &ConnectionOptions,
        e: usize,
        pds: &[Pd],
    ) -> Side {
        let (i, peer) = (options.hosts[e], options.hosts[1 - e]);
        let pd = pds[i];
        let area = |len| Spans::new(len);
        let len = (4 * options.message_max).max(4096);
        // Unreliable WRITEs never free their targets, so the region is larger.
        let target_len = if options.transport == Transport::Uc { 4 * len } else { len };
        let host = &mut world.hosts[i];
        let local = Area { region: self.region(host, pd, len, options.layout), spans: area(len) };
        let region = self.region(host, pd, target_len, options.layout);
        let target = Area { region, spans: area(target_len) };
        let path = Path::new(world.hosts[peer].address, e as u32);
        let host = &mut world.hosts[i];
        let ah = host.nic.create_ah(pd, path).expect("room for an address handle");
        let srq = options.shared[e].then_some(self.hosts[i].srq);
        let xrc = options.transport == Transport::Xrc;
        let shares = srq.is_some() || xrc;
        let pool = if shares { i } else { self.add_own_pool(host, pd, i, options) };
        let is_target = xrc && e == 1;
        let end = self.add_end(world, options, (i, pd), srq, is_target);
        let to_queues =
            if is_target { self.open_to_queues(world, i, &target.region) } else { Vec::new() };
        let opens = if is_target { to_queues.clone() } else { vec![target.region.key] };
        let mut side = Side {
            end,
            options: options.clone(),
            local,
            target,
            pool,
            ah,
            membership: None,
            left: if is_target { 0 } else { options.operations },
            posted: 0,
            order: SendOrder::default(),
            ops: HashMap::new(),
            calls: BTreeMap::new(),
            messages: VecDeque::new(),
            doubtful: HashSet::new(),
            unreliable: HashMap::new(),
            invalidatable: None,
            keys: to_queues,
            opens,
            windows: Vec::new(),
            gives_up_after: options.gives_up_after[e],
            failed: None,
            closing: false,
        };
        side.offer_key(world);
        side
    }

    /// Takes all ends to ERROR, so that posted requests come back.
    pub(crate) fn close(&mut self, world: &mut World) {
        for s in &mut self.sides {
            s.closing = true;
            s.end.go_to(world, State::Error);
        }
    }

    /// Destroys all objects.
    pub(crate) fn tear_down(&mut self, world: &mut World) -> Result<(), Violation> {
        let failed = |e: &dyn core::fmt::Debug| Violation::new("leaks", format!("{e:?}"));
        self.disband(world)?;
        for s in &self.sides {
            let nic = &mut world.hosts[s.end.host].nic;
            nic.destroy_qp(s.end.qpn).map_err(|e| failed(&e))?;
            nic.destroy_cq(s.end.send_cq).map_err(|e| failed(&e))?;
            nic.destroy_cq(s.end.recv_cq).map_err(|e| failed(&e))?;
            nic.destroy_ah(s.ah).map_err(|e| failed(&e))?;
            for window in &s.windows {
                nic.dealloc_mw(*window).map_err(|e| failed(&e))?;
            }
            let own = [s.local.region.key, s.target.region.key];
            for key in own.iter().chain(&s.keys) {
                nic.dereg_mr(*key).map_err(|e| failed(&e))?;
            }
        }
        for pool in &self.pools {
            let nic = &mut world.hosts[pool.host].nic;
            nic.dereg_mr(pool.region.key).map_err(|e| failed(&e))?;
        }
        for i in 0..self.hosts.len() {
            self.tear_down_domain(world, i)?;
        }
        for (host, at) in self.hosts.iter().zip(&mut world.hosts) {
            at.nic.destroy_srq(host.srq).map_err(|e| failed(&e))?;
            at.nic.dereg_mr(host.words.key).map_err(|e| failed(&e))?;
            at.nic.dealloc_pd(host.pd).map_err(|e| failed(&e))?;
        }
        Ok(())
    }
}

impl Side {
    /// Registers a region whose key the peer may invalidate.
    pub(super) fn offer_key(&mut self, world: &mut World) {
        if !self.end.transport.is_reliable() {
            return;
        }
        let init = self.local.region.init(Access::REMOTE_INVALIDATE);
        let nic = &mut world.hosts[self.end.host].nic;
        let key = nic.reg_mr(self.end.pd, init).expect("room for a region");
        self.invalidatable = Some(key);
        self.keys.push(key);
    }
}
