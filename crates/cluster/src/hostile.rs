//! What strangers may send to a node, and write into etcd, for fuzzing: a replica, its memory and
//! a configuration service, without sockets and threads.

use remora_store::log::{Fields, Operation, Position};
use remora_store::memory::{Heap, Memory};
use remora_store::replica::{
    Answer, Configuration, ConfigurationService, Entry, Event, Mark, Message, NodeId, Options,
    Output, Registry, Replica, region_bytes,
};

use crate::documents::{Agreed, Document, SLOTS, Written, note};
use crate::incoming::Incoming;
use crate::map::Atlas;
use crate::wire::{Frame, Hello, Welcome};

/// The ring's bytes.
const RING: u64 = 1024;
/// The node that strangers talk to; the others are those around it.
const ME: NodeId = NodeId(2);
/// Steps that one input makes at most.
const STEPS: usize = 256;

/// Reads greetings, then has a replica hear what strangers send and write. The input is a list of
/// steps: the first byte says what happens and who does it, the next two how many bytes it takes.
///
/// # Panics
/// If a promise is broken.
pub fn wire(data: &[u8]) {
    greet(data);
    let mut node = Node::new();
    let mut rest = data;
    for _ in 0..STEPS {
        let Some(([kind, low, high], after)) = rest.split_first_chunk() else { return };
        let len = usize::from(u16::from_le_bytes([*low, *high])).min(after.len());
        let (bytes, after) = after.split_at(len);
        node.step(*kind, bytes);
        rest = after;
    }
}

/// A greeting that is read is written as it was, whatever comes behind it.
fn greet(data: &[u8]) {
    if let Ok(hello) = Hello::parse(data) {
        assert!(data.starts_with(&hello.to_bytes()));
    }
    if let Ok(welcome) = Welcome::parse(data) {
        assert!(data.starts_with(&welcome.to_bytes()));
    }
}

/// Reads documents and keys of etcd's: the first byte says which.
///
/// # Panics
/// If a document that is taken is another one when it is written, or says what cannot be.
pub fn documents(data: &[u8]) {
    let Some((kind, bytes)) = data.split_first() else { return };
    let mut atlas = Atlas::default();
    let key = match kind % 4 {
        0 => SLOTS,
        1 => "a/configuration",
        2 => "a/nodes/5",
        _ => {
            if let Ok(agreed) = Agreed::understand(bytes) {
                same(&agreed);
            }
            return keys(bytes);
        }
    };
    if note(&mut atlas, key, bytes, 7).is_err() {
        assert!(atlas.slots.is_none());
        return;
    }
    atlas.slots.iter().for_each(same);
    let nodes = atlas.groups.values().flat_map(|view| view.nodes.values());
    nodes.for_each(same);
    for configuration in atlas.groups.values().filter_map(|view| view.configuration.as_ref()) {
        same(&Written {
            configuration: configuration.clone(),
            is_free: false,
            changes: Vec::new(),
        });
        assert!(configuration.voters().count() <= remora_store::replica::MEMBERS_MAX + 1);
    }
    // What clients are shown of it, and what may be moved.
    for (group, node) in [("a", 5), ("b", 1)] {
        let shown = atlas.shown(group, NodeId(node));
        let slots = shown.groups.iter().flat_map(|group| &group.slots);
        assert!(slots.map(|range| u32::from(range.count())).sum::<u32>() <= 1 << 14);
        let moved = atlas.with_move(&["0-16383".parse().expect("slots")], group);
        assert!(moved.is_err() || moved.is_ok_and(|map| map.is_sound()));
    }
}

/// A document comes back as it is.
fn same<D: Document + serde::Serialize>(document: &D) {
    let bytes = serde_json::to_vec(document).expect("texts and numbers");
    let again = D::read(&bytes).expect("it was sound");
    assert_eq!(serde_json::to_vec(&again).expect("texts and numbers"), bytes);
}

/// Keys of any name, each with a document of nobody's.
fn keys(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let mut atlas = Atlas::default();
    for key in text.split('\n') {
        // A refusal leaves what was known.
        let _ = note(&mut atlas, key, b"{}", 1);
        assert!(atlas.slots.is_none() && atlas.groups.values().all(|view| view.nodes.is_empty()));
    }
}

/// A node with memory that strangers write.
struct Node {
    replica: Replica,
    memory: Heap,
    registry: Registry,
    incoming: Incoming,
    now_ns: u64,
}

impl Node {
    fn new() -> Node {
        let options = Options {
            ring_bytes: RING,
            salt: 5,
            patience_ns: 1 << 20,
            lease_ns: 1 << 21,
            drift_ppm: 500,
            waits_for_disk: false,
            disk_patience_ns: 0,
        };
        let mut node = Node {
            replica: Replica::new(ME, options),
            memory: Heap::new(region_bytes(RING)),
            registry: Registry::new(Some(first())),
            incoming: Incoming::default(),
            now_ns: 0,
        };
        node.pass(1);
        node
    }

    fn step(&mut self, kind: u8, bytes: &[u8]) {
        let from = NodeId(u64::from(kind >> 3) % 4);
        match kind & 7 {
            0..3 => self.hear(from, bytes),
            3 => self.be_written(bytes),
            4 => self.pass(bytes.iter().fold(1 << 18, |sum, byte| sum + (u64::from(*byte) << 14))),
            5 => {
                let fields = Fields { key: b"k", value: bytes, ..Fields::of(Operation::Put) };
                // It says why it takes none.
                let _ = self.replica.append(&self.memory, &fields);
            }
            6 => self.replica.handle_disconnected(&self.memory, from),
            _ => {
                if let Some(Written { configuration, is_free, .. }) = Written::read(bytes) {
                    let entry = Entry { configuration, revision: self.now_ns, is_free };
                    let latest = Event::Latest(Some(entry));
                    self.replica.handle_event(&self.memory, latest, self.now_ns);
                }
            }
        }
        self.carry_out();
    }

    /// A frame from a node.
    fn hear(&mut self, from: NodeId, bytes: &[u8]) {
        let Some(frame) = Frame::decode(bytes) else { return };
        let again = frame.encode().expect("it came in a frame");
        assert_eq!(Frame::decode(&again).as_ref(), Some(&frame));
        match frame {
            Frame::Message(message) => self.replica.handle_message(&self.memory, from, message),
            Frame::Records(bytes) => assert!(self.incoming.add_records(bytes)),
            Frame::Head(bytes) => assert!(self.incoming.add_head(bytes)),
            Frame::End => {
                if let Some((snapshot, _)) = self.incoming.finish() {
                    self.replica.handle_snapshot(&self.memory, from, &snapshot);
                }
            }
        }
    }

    /// Bytes at a place of the region, which the first two of them say.
    fn be_written(&mut self, bytes: &[u8]) {
        let Some((at, bytes)) = bytes.split_first_chunk() else { return };
        let at = u64::from(u16::from_le_bytes(*at)) % region_bytes(RING);
        let len = bytes.len().min((region_bytes(RING) - at) as usize);
        self.memory.write(at, &bytes[..len]);
        self.replica.poll_memory(&self.memory);
    }

    fn pass(&mut self, time_ns: u64) {
        self.now_ns += time_ns;
        self.replica.handle_time(self.now_ns);
        self.carry_out();
    }

    /// Does what the replica wants, as far as that is possible here.
    fn carry_out(&mut self) {
        // What it does at once has an end.
        for _ in 0..1 << 12 {
            while self.replica.poll_apply(&self.memory).is_some() {}
            let Some(output) = self.replica.poll_output() else { return };
            self.carry_out_one(output);
        }
        panic!("{:?} does not come to rest", self.replica);
    }

    fn carry_out_one(&mut self, output: Output) {
        let lies_within = |at: u64, len: u64| {
            let end = at.checked_add(len).expect("a place");
            assert!(end <= region_bytes(RING), "{len} bytes at {at}");
        };
        match output {
            Output::Request(request) => {
                self.registry.submit(ME, request);
                while let Some((_, event)) = self.registry.poll() {
                    self.replica.handle_event(&self.memory, event, self.now_ns);
                }
            }
            Output::Fence { epoch } => self.replica.handle_fenced(&self.memory, epoch),
            Output::Connect { to } => self.replica.handle_connected(to),
            Output::Write { to, at, len, until, .. } => {
                lies_within(at, len);
                if let Some(mark) = until {
                    self.replica.handle_written(&self.memory, to, mark);
                }
            }
            Output::Read { from, pieces } => {
                pieces.into_iter().for_each(|(at, len)| lies_within(at, len));
                self.replica.handle_read(&self.memory, from);
            }
            Output::Send { message, .. } => {
                assert!(Frame::Message(message).encode().is_some(), "a frame has room for it");
            }
            Output::Disconnect { .. } | Output::Snapshot { .. } | Output::Truncated { .. } => {}
        }
    }
}

fn first() -> Configuration {
    Configuration::first(NodeId(1), vec![NodeId(1), ME, NodeId(3)]).expect("three nodes")
}

/// Inputs of [`wire`] that come far, with their names.
///
/// # Panics
/// Never: its messages fit frames.
#[must_use]
pub fn wires() -> Vec<(String, Vec<u8>)> {
    let step = |kind: u8, from: u8, bytes: &[u8]| {
        let len = (bytes.len() as u16).to_le_bytes();
        [&[kind | from << 3, len[0], len[1]], bytes].concat()
    };
    let told = |from: u8, message: Message| {
        step(0, from, &Frame::Message(message).encode().expect("it fits"))
    };
    let mark = |counter: u64, offset: u64| Mark { position: Position::new(1, counter), offset };
    let answer = Answer {
        ends: vec![mark(2, 96)],
        first_offset: 0,
        applied: mark(1, 48),
        committed: mark(1, 48).position,
        free_until: 48,
    };
    let entry = |epoch| {
        let configuration = Configuration { epoch, primary: ME, ..first() };
        let written = Written { configuration, is_free: false, changes: Vec::new() };
        step(7, 0, &serde_json::to_vec(&written).expect("numbers"))
    };
    let history = |epoch, answer: &Answer| Message::History { epoch, answer: answer.clone() };
    let empty = Answer { ends: vec![], applied: Mark::default(), free_until: 0, ..answer.clone() };
    let empty = Answer { committed: empty.applied.position, ..empty };
    let sync = Message::Sync { epoch: 1, from: Mark::default(), slot: 1 };
    let follows = [told(1, Message::Epoch(first())), told(1, sync)].concat();
    let leads = [entry(2), told(1, history(2, &empty)), told(3, history(2, &empty))];
    // The first backup's answer lies at 64: it holds the epoch's first record.
    let held = Position::new(2, 1).number().to_le_bytes();
    let held = step(3, 1, &[&[64, 0], &held[..], &[0; 16]].concat());
    let synced = [1, 3].map(|from| told(from, Message::Synced { epoch: 2, in_memory: true }));
    let synced = [synced.concat(), held].concat();
    let less = Mark { position: Position::new(2, 9), offset: 8 };
    let less = Answer { ends: vec![less], ..empty.clone() };
    let back = [told(1, history(3, &less)), told(3, history(3, &less))].concat();
    let many = Configuration { members: (1..90).map(NodeId).collect(), ..first() };
    let end = Frame::End.encode().expect("it fits");
    let records = Frame::Records(b"records").encode().expect("it fits");
    let inputs = [
        ("follows", [follows.clone(), step(3, 1, &[64, 2, 9, 9]), step(4, 0, &[200])].concat()),
        ("leads", [leads.concat(), synced.clone(), step(5, 0, b"value"), step(4, 0, b"")].concat()),
        ("goes-back", [leads.concat(), synced, entry(3), back].concat()),
        ("too-many", told(1, Message::Epoch(many))),
        ("reads", [entry(2), told(1, history(2, &answer)), step(4, 0, &[9])].concat()),
        ("fetches", [follows, told(1, Message::Fetch { epoch: 1 })].concat()),
        ("is-stale", told(3, Message::Stale { epoch: 9 })),
        ("copies", [step(0, 1, &records), step(0, 1, &end), step(6, 1, b"")].concat()),
    ];
    inputs.into_iter().map(|(name, bytes)| (name.to_owned(), bytes)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Inputs that reach nothing find nothing.
    #[test]
    fn inputs_come_as_far_as_their_names_say() {
        let after = |name: &str| {
            let (_, bytes) = wires().into_iter().find(|(seed, _)| seed == name).unwrap();
            let (mut node, mut rest) = (Node::new(), &bytes[..]);
            while let Some(([kind, low, high], after)) = rest.split_first_chunk() {
                let len = u16::from_le_bytes([*low, *high]).into();
                node.step(*kind, &after[..len]);
                rest = &after[len..];
            }
            node.replica
        };
        use remora_store::replica::Standing;
        assert_eq!(after("follows").standing(), Standing::Backup(true));
        assert!(after("leads").counters().served > 0);
        assert_eq!(after("reads").standing(), Standing::Recovering);
        assert_eq!(after("fetches").counters().snapshots, 1);
        assert_eq!(after("is-stale").counters().stale, 1);
        // What cannot be is refused, and the node goes on.
        assert!(after("goes-back").counters().refused > 0);
        assert_eq!(after("too-many").counters().refused, 1);
    }
}
