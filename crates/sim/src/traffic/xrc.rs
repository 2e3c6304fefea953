//! XRC: each host's domain of shared receive queues, which initiators of other hosts name. Each
//! queue has a protection domain of its own, so that a request that uses another queue's memory is
//! noticed.

use remora_nic::nic::PostError;
use remora_nic::queue::{RecvRequest, SendRequest};
use remora_nic::wire::Transport;
use remora_nic::{Access, Key, Pd, Xrcd};

use super::records::{Domain, Side, Traffic, XrcQueue};
use crate::check::Violation;
use crate::endpoint::{Endpoint, Half, ring};
use crate::memory::Region;
use crate::world::{Host, World};

/// The most scatter/gather entries of a queue's elements.
const SGES: usize = 4;
/// Entries of each queue's completion queue.
const COMPLETIONS: usize = 1024;

impl Traffic {
    /// Creates the domain of host `i`, if the world has XRC.
    pub(super) fn add_domain(&mut self, world: &mut World, i: usize) {
        if self.options.xrc_queues == 0 {
            return;
        }
        let nic = &mut world.hosts[i].nic;
        let xrcd = nic.alloc_xrcd().expect("room for an XRC domain");
        let queues = (0..self.options.xrc_queues).map(|_| self.add_queue(world, i, xrcd)).collect();
        let speed = self.dice.pick(&[1.0, 1.0, 0.5, 0.1]);
        self.hosts[i].domain = Some(Domain { xrcd, queues, speed });
    }

    fn add_queue(&mut self, world: &mut World, i: usize, xrcd: Xrcd) -> XrcQueue {
        let host = &mut world.hosts[i];
        let pd = host.nic.alloc_pd().expect("room for a protection domain");
        let cq = host.nic.create_cq(COMPLETIONS).expect("room for a completion queue");
        if self.options.event_driven {
            host.nic.req_notify_cq(cq, false).expect("it is there");
        }
        let before = host.memory.bytes().len() as u64;
        let ring = ring(host, self.options.xrc_receives, SGES, 0);
        self.rings.push((i, before..ring.addr + ring.len() as u64));
        let made = host.nic.create_xrc_srq(pd, xrcd, cq, ring);
        let handle = made.expect("room for a shared receive queue");
        let srqn = host.nic.srq_number(handle).expect("it is there");
        let words = register(host, pd, &self.hosts[i].words);
        let pool = self.pools.len();
        let served = |c: &&_| is_served(c, i);
        let longest = self.options.connections.iter().filter(served).map(|c| c.message_max).max();
        self.add_shared_pool(host, pd, i, longest.unwrap_or(0), self.options.xrc_receives);
        XrcQueue { handle, srqn, cq, pd, pool, words }
    }

    /// Creates the target of an XRC connection at host `i`.
    pub(super) fn add_xrc_target(&self, world: &mut World, i: usize) -> Endpoint {
        let domain = self.hosts[i].domain.as_ref().expect("a world with XRC has domains");
        Endpoint::create_xrc_target(world, (i, domain.queues[0].pd), domain.xrcd)
    }

    /// By queue: a key that opens a region of host `i` to requests that name the queue.
    pub(super) fn open_to_queues(&self, world: &mut World, i: usize, region: &Region) -> Vec<Key> {
        let queues = self.hosts[i].domain.iter().flat_map(|domain| &domain.queues);
        queues.map(|queue| register(&mut world.hosts[i], queue.pd, region)).collect()
    }

    fn queue_of_peer(&self, s: usize, queue: usize) -> Option<&XrcQueue> {
        let (side, peer) = (&self.sides[s], &self.sides[s ^ 1]);
        let domain = self.hosts[peer.end.host].domain.as_ref()?;
        domain.queues.get(queue).filter(|_| side.end.transport == Transport::Xrc)
    }

    /// The queue of the peer that a request of end `s` names, if it names one.
    pub(super) fn choose_queue(&mut self, s: usize) -> usize {
        let queues = self.options.xrc_queues as u64;
        let xrc = self.sides[s].end.transport == Transport::Xrc;
        if xrc { self.dice.below(queues) as usize } else { 0 }
    }

    /// The key that opens the words of end `s`'s peer.
    pub(super) fn word_key(&self, s: usize, host: usize, queue: usize) -> Key {
        self.queue_of_peer(s, queue).map_or(self.hosts[host].words.key, |queue| queue.words)
    }

    /// Posts a request, on XRC for a queue of the peer.
    pub(super) fn post(
        &self,
        world: &mut World,
        s: usize,
        queue: usize,
        request: &SendRequest<'_>,
    ) -> Result<(), PostError> {
        let end = self.sides[s].end;
        match self.queue_of_peer(s, queue) {
            Some(XrcQueue { srqn, .. }) => end.post_xrc_send(world, *srqn, request),
            None => end.post_send(world, request),
        }
    }

    /// The pool of receive buffers of a queue.
    pub(super) fn pool_of(&self, host: usize, queue: usize) -> Option<usize> {
        Some(self.hosts[host].domain.as_ref()?.queues.get(queue)?.pool)
    }

    /// Posts receive buffers of a host's domain, and takes its completions.
    pub(super) fn look_after_domain(
        &mut self,
        world: &mut World,
        host: usize,
    ) -> Result<(), Violation> {
        if !self.options.event_driven {
            self.poll_domain(world, host)?;
        }
        let Some(domain) = &self.hosts[host].domain else { return Ok(()) };
        let speed = if self.healed { 1.0 } else { domain.speed };
        let queues: Vec<_> = domain.queues.iter().map(|q| (q.handle, q.pool)).collect();
        for (srq, pool) in queues {
            let post = |world: &mut World, request: &RecvRequest<'_>| {
                let Host { nic, memory, .. } = &mut world.hosts[host];
                nic.post_srq_recv(memory, srq, request)
            };
            self.fill_pool(world, pool, (speed, SGES), post);
        }
        Ok(())
    }

    /// Takes the completions of a host's domain.
    pub(super) fn poll_domain(&mut self, world: &mut World, host: usize) -> Result<(), Violation> {
        let queues = self.hosts[host].domain.as_ref().map_or(0, |domain| domain.queues.len());
        (0..queues).try_for_each(|queue| self.poll_queue(world, host, queue))
    }

    /// The queue whose completions go to this completion queue.
    pub(super) fn queue_at(&self, host: usize, cq: u32) -> Option<usize> {
        self.hosts[host].domain.as_ref()?.queues.iter().position(|queue| queue.cq == cq)
    }

    /// Takes the completions of one queue.
    pub(super) fn poll_queue(
        &mut self,
        world: &mut World,
        host: usize,
        queue: usize,
    ) -> Result<(), Violation> {
        let Some(domain) = &self.hosts[host].domain else { return Ok(()) };
        for entry in Endpoint::drain(world, host, domain.queues[queue].cq) {
            let is = |s: &Side| {
                s.end.host == host && s.end.half == Half::Target && s.end.qpn == entry.qpn
            };
            let side = self.sides.iter().position(is);
            let side = side.ok_or_else(|| {
                Violation::new(
                    "messages",
                    format!("a completion of no queue pair of the domain: {entry:?}"),
                )
            })?;
            self.receive_completed(world, side, Some(queue), &entry)?;
        }
        Ok(())
    }

    /// Destroys the domain of host `i` after its queue pairs.
    pub(super) fn tear_down_domain(&self, world: &mut World, i: usize) -> Result<(), Violation> {
        let failed = |e: &dyn core::fmt::Debug| Violation::new("leaks", format!("{e:?}"));
        let Some(domain) = &self.hosts[i].domain else { return Ok(()) };
        let nic = &mut world.hosts[i].nic;
        for queue in &domain.queues {
            nic.destroy_srq(queue.handle).map_err(|e| failed(&e))?;
            nic.destroy_cq(queue.cq).map_err(|e| failed(&e))?;
            nic.dereg_mr(queue.words).map_err(|e| failed(&e))?;
            nic.dealloc_pd(queue.pd).map_err(|e| failed(&e))?;
        }
        nic.dealloc_xrcd(domain.xrcd).map_err(|e| failed(&e))
    }
}

/// Whether this connection ends at a domain of host `i`.
fn is_served(connection: &crate::options::ConnectionOptions, i: usize) -> bool {
    connection.transport == Transport::Xrc && connection.hosts[1] == i
}

fn register(host: &mut Host, pd: Pd, region: &Region) -> Key {
    let init = region.init(Access::all().difference(Access::REMOTE_INVALIDATE));
    host.nic.reg_mr(pd, init).expect("room for a region")
}
