//! The applications of a random world: they post work, take completions, and tell the checkers
//! what they know. (The flows of world files are in `flows`.)
//!
//! - `setup` creates and destroys what they use; `records` is what they remember of it, and `spans`
//!   which parts of a region are in use.
//! - `post` posts send requests, `complete` takes their completions; `receives` has receive buffers
//!   and the messages that arrive in them.
//! - `calls`: calls of kernels. `groups`: multicast. `xrc`: shared receive queues that peers name.

mod calls;
mod complete;
mod groups;
mod post;
mod receives;
mod records;
mod setup;
mod spans;
mod xrc;

use remora_nic::Event;

use crate::check::Violation;
use crate::endpoint::Endpoint;
use crate::world::World;
use records::Side;
pub(crate) use records::{Stats, Traffic};

impl Traffic {
    /// Whether all ends have done all their work.
    pub(crate) fn is_done(&self) -> bool {
        self.sides.iter().all(Side::is_idle)
    }

    fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// Lets a host look after its queues: post work and take completions.
    pub(crate) fn tick(&mut self, world: &mut World, host: usize) -> Result<(), Violation> {
        for s in 0..self.sides.len() {
            if self.sides[s].end.host != host {
                continue;
            }
            if !self.options.event_driven {
                self.poll_side(world, s)?;
            }
            self.look_after_calls(world, s)?;
            self.post_receives(world, s);
            self.post_sends(world, s)?;
            self.move_member(world, s)?;
            self.give_up(world, s);
        }
        self.look_after_domain(world, host)
    }

    /// Handles an event of a card.
    pub(crate) fn event(
        &mut self,
        world: &mut World,
        host: usize,
        event: &Event,
    ) -> Result<(), Violation> {
        match *event {
            Event::CompletionQueueNotify(cq) if self.options.event_driven => {
                let of =
                    |s: &&Side| s.end.host == host && (s.end.send_cq == cq || s.end.recv_cq == cq);
                let side = self.sides.iter().position(|s| of(&s));
                // The queue is armed before it is polled, so no entry is missed between the two.
                world.hosts[host].nic.req_notify_cq(cq, false).ok();
                match (side, self.queue_at(host, cq)) {
                    (Some(side), _) => self.poll_side(world, side),
                    (_, Some(queue)) => self.poll_queue(world, host, queue),
                    _ => Ok(()),
                }
            }
            Event::LastElementReached(_) | Event::CommunicationEstablished(_) => Ok(()),
            Event::SendQueueDrained(_) | Event::SrqLimitReached(_) => Ok(()),
            ref other => Err(Violation::new("events", format!("host {host}: {other:?}"))),
        }
    }

    /// Takes the completions of all ends.
    pub(crate) fn poll_all(&mut self, world: &mut World) -> Result<(), Violation> {
        (0..self.sides.len()).try_for_each(|s| self.poll_side(world, s))?;
        (0..self.hosts.len()).try_for_each(|host| self.poll_domain(world, host))
    }

    /// Takes the completions of one end.
    fn poll_side(&mut self, world: &mut World, s: usize) -> Result<(), Violation> {
        let Endpoint { host, send_cq, recv_cq, .. } = self.sides[s].end;
        for entry in Endpoint::drain(world, host, recv_cq) {
            self.receive_completed(world, s, None, &entry)?;
        }
        for entry in Endpoint::drain(world, host, send_cq) {
            self.send_completed(world, s, &entry)?;
        }
        Ok(())
    }

    /// A number that changes whenever an application has done something.
    pub(crate) fn activity(&self) -> u64 {
        let Stats { received, answered, congested, done, .. } = &self.stats;
        self.next_id + received + answered + congested + done.values().sum::<u64>()
    }

    /// Describes the work that is not done.
    pub(crate) fn unfinished(&self, world: &World) -> String {
        let open = self.sides.iter().enumerate().filter(|(_, s)| !s.is_idle());
        open.map(|(i, s)| {
            let info = world.hosts[s.end.host].nic.query_qp(s.end.qpn);
            format!(
                "end {i}: {} to post, {} under way, {} unanswered, {info:?}\n",
                s.left,
                s.order.len(),
                s.calls.len()
            )
        })
        .collect()
    }

    /// Whether datagrams to a group may reach a host that has just left it.
    pub(crate) fn may_stray(&self) -> bool {
        self.options.restless > 0.0
    }

    /// Checks the memory of all hosts.
    pub(crate) fn check_memory(&self, world: &World) -> Result<(), Violation> {
        self.hosts.iter().zip(&world.hosts).try_for_each(|(h, w)| h.model.check(&w.memory))
    }

    /// Checks the words for atomics, when no operation is under way.
    pub(crate) fn check_words(&self, world: &World) -> Result<(), Violation> {
        for (&(host, word), history) in &self.words {
            let bytes = self.hosts[host].words.read(&world.hosts[host].memory, word * 8, 8);
            let last = u64::from_ne_bytes(bytes.try_into().expect("8 bytes were read"));
            history.judge(last).map_err(|v| {
                Violation::new(v.checker, format!("host {host}, word {word}: {}", v.what))
            })?;
        }
        Ok(())
    }
}
