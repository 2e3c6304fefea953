//! Does what a node's replica wants: on its links (among it fencing), with its disk, and of the
//! configuration service.

use std::task::Waker;
use std::time::Instant;

use remora::nic::queue::Completion;
use remora_store::replica::{Message, NodeId, Output, Request};

use crate::group::{Group, GroupState, Wanted};
use crate::link::Link;
use crate::wire::Frame;

/// Changes of so many bytes are posted though nobody waits yet: the others begin with them.
const UNPOSTED: u64 = 16 << 10;
/// Completions that are taken at once.
const COMPLETIONS: usize = 16;

impl GroupState {
    /// Does what the replica wants.
    pub(crate) fn carry_out(&mut self, group: &Group) {
        self.posted_to = self.replica.last();
        loop {
            self.give_out(group);
            let broken = self.links.iter_mut().find_map(|(node, link)| {
                link.flush(&group.region).err().map(|broken| (*node, broken))
            });
            if let Some((node, broken)) = broken {
                tracing::info!("the link to {node} is broken: {broken}");
                self.lose(group, node);
            } else if !self.keep(group) && !self.hear_card(group) {
                break;
            }
        }
        self.tell(group);
    }

    /// Takes what the card says of requests that are done; whether there was any. Where some are
    /// still under way, the node's thread will hear of them. (It also finds out if the card ends.)
    fn hear_card(&mut self, group: &Group) -> bool {
        if !self.links.values().any(Link::awaits) {
            return false;
        }
        let sends = &group.queues.sends;
        let mut completions = [Completion::default(); COMPLETIONS];
        let mut found = sends.poll(&mut completions).unwrap_or(0);
        if found == 0 && sends.arm(false).is_ok() {
            found = sends.poll(&mut completions).unwrap_or(0);
        }
        for completion in &completions[..found] {
            self.complete(group, completion);
        }
        if found > 0 && !self.copiers.is_empty() {
            // They wait for room.
            group.wake_all();
        }
        found > 0
    }

    /// The same for changes that somebody will wait for: what goes to other nodes is posted then
    /// ([`Group::wait`]), in one WRITE with what is logged meanwhile; or by the node's thread,
    /// within a tick. To post each change alone takes nearly three times the processor's time.
    pub(crate) fn carry_out_soon(&mut self, group: &Group) {
        let most = UNPOSTED.min(group.options.ring_bytes / 8);
        if self.replica.last().offset.saturating_sub(self.posted_to.offset) >= most {
            return self.carry_out(group);
        }
        self.give_out(group);
        while self.keep(group) {
            self.give_out(group);
        }
        self.tell(group);
    }

    /// Gives what the replica wants to the links and threads that are there for it.
    fn give_out(&mut self, group: &Group) {
        while let Some(output) = self.replica.poll_output() {
            self.carry_out_one(group, output);
        }
    }

    /// Says to kernels and to threads that wait what is committed.
    fn tell(&mut self, group: &Group) {
        self.tell_kernels(group);
        let now = (self.replica.committed(), self.replica.epoch());
        if self.told != now {
            if self.told.0 != now.0 {
                self.advanced = Instant::now();
            }
            self.told = now;
            group.tell();
        }
    }

    /// Gives the disk what is new, and takes note of what it has; whether that was news.
    fn keep(&mut self, group: &Group) -> bool {
        let Some(feed) = &mut self.disk else { return false };
        feed.feed(&mut self.replica, &group.region);
        let Some(mark) = feed.kept() else { return false };
        let generation = self.replica.generation();
        self.replica.handle_kept(&group.region, mark, generation);
        true
    }

    fn carry_out_one(&mut self, group: &Group, output: Output) {
        match output {
            Output::Request(request) => {
                if matches!(request, Request::Resign { .. }) {
                    self.cease(group);
                }
                // Without its thread, the node is ending.
                let _ = self.requests.send(request);
            }
            Output::Fence { epoch } => self.fence(group, epoch),
            Output::Connect { to } => {
                self.drop_link(to);
                self.want(to, None);
            }
            Output::Disconnect { from } => {
                self.wanted.remove(&from);
                self.drop_link(from);
            }
            Output::Send { to, message } => self.send(to, message),
            Output::Write { to, at, len, until, wakes } => {
                if let Some(link) = self.links.get_mut(&to) {
                    link.write(&group.region, (at, len), until, wakes);
                }
            }
            Output::Read { from, pieces } => {
                if let Some(link) = self.links.get_mut(&from) {
                    link.read(&pieces);
                }
            }
            Output::Snapshot { to } => {
                if let Some(link) = self.links.get(&to) {
                    self.copies.insert(to, link.id);
                }
            }
            Output::Truncated { to } => {
                if let Some(feed) = &mut self.disk {
                    feed.truncate(to);
                }
            }
        }
    }

    fn fence(&mut self, group: &Group, epoch: u32) {
        self.cease(group);
        self.links.values().filter(|link| link.epoch < epoch).for_each(Link::fence);
        self.links.retain(|_, link| link.epoch >= epoch);
        if group.device.has_stopped_writer() {
            // What it writes when it goes on may fall among what a later primary writes.
            return self.unfenced = true;
        }
        // (What was wanted in an earlier epoch may only just have been noted.)
        self.wanted.clear();
        self.copies.retain(|to, _| self.links.contains_key(to));
        self.replica.handle_fenced(&group.region, epoch);
    }

    /// A node is to be connected to, in this epoch.
    pub(crate) fn want(&mut self, node: NodeId, not_before: Option<Instant>) {
        let epoch = self.replica.epoch();
        self.wanted.insert(node, Wanted { epoch, not_before });
        self.door.take().into_iter().for_each(Waker::wake);
    }

    fn send(&mut self, to: NodeId, message: Message) {
        let Some(link) = self.links.get_mut(&to) else { return };
        match Frame::Message(message).encode() {
            Some(frame) => link.send(frame),
            None => panic!("a message of the protocol is longer than a frame"),
        }
    }
}
