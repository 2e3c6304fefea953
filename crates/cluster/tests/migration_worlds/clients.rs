//! Clients: each does one thing after the other, goes where it is sent, and does not always hear
//! what came of it.

use remora_sim::check::linearizable::{Kind, Operation};
use remora_store::front::slots::{Part, Verdict, Wanted};

use super::groups::{Change, Life};
use super::world::{KEYS, NAMES, State};

/// What a client is told.
#[derive(Clone, Copy, Debug)]
enum Told {
    Done(u64),
    /// To ask another group, this once.
    Ask(usize),
}

/// An answer that is told when so much of a group's log is committed while it is what it was.
#[derive(Clone, Copy, Debug)]
struct Answer {
    by: usize,
    life: Life,
    upto: usize,
    told: Told,
}

/// A client.
#[derive(Debug, Default)]
pub(crate) struct Client {
    /// Which group it asks, and whether it was sent there for this once.
    at: usize,
    is_asking: bool,
    /// The operation under way, by its number in the history.
    current: Option<usize>,
    answer: Option<Answer>,
    begun: u64,
    /// Where it reads at the end.
    read: usize,
}

impl Client {
    pub(crate) fn is_done(&self) -> bool {
        self.read == KEYS.len() && self.current.is_none()
    }
}

impl State {
    /// A client does its next step.
    pub(crate) fn go_on(&mut self, client: &mut Client) {
        if let Some(answer) = client.answer {
            return self.hear(client, answer);
        }
        match client.current {
            None => self.begin(client),
            Some(number) => self.ask(client, number),
        }
    }

    fn begin(&mut self, client: &mut Client) {
        let is_last = client.begun == self.plan.operations;
        if is_last && (!self.is_calm || client.read == KEYS.len()) {
            return;
        }
        let (key, kind) = if is_last {
            client.read += 1;
            (client.read - 1, Kind::Get)
        } else {
            client.begun += 1;
            let kind = match self.dice.below(5) {
                0 | 1 => Kind::Get,
                // Nothing there is 0, and to delete it, to put that.
                2 => Kind::Put(0),
                3 => Kind::Put(self.dice.between(1..=1 << 40)),
                _ => Kind::Add(self.dice.between(1..=1000)),
            };
            (self.dice.below(KEYS.len() as u64) as usize, kind)
        };
        client.current = Some(self.history.len());
        self.history.push(Operation {
            key: key as u8,
            kind,
            invoked_ns: self.now,
            answered_ns: None,
            answer: 0,
        });
    }

    /// The group's primary carries the operation out, or sends the client elsewhere.
    fn ask(&mut self, client: &mut Client, number: usize) {
        let Operation { key, kind, .. } = self.history[number];
        let name = KEYS[usize::from(key)].as_bytes();
        let wanted =
            Wanted { writes: kind != Kind::Get, is_asking: std::mem::take(&mut client.is_asking) };
        let group = &mut self.groups[client.at];
        let node = group.primary();
        let keys = &node.table.keys;
        let verdict = node.shard.judge([name].into_iter(), wanted, |key| keys.contains_key(key));
        match verdict {
            Verdict::Here => {
                let before = keys.get(name).copied().unwrap_or_default();
                let after = match kind {
                    Kind::Get => before,
                    Kind::Put(value) => value,
                    Kind::Add(more) => before + more,
                };
                let change = match after {
                    0 => Change::Delete(name.to_vec()),
                    after => Change::Put(name.to_vec(), after),
                };
                let life = group.life();
                if wanted.writes {
                    group.append(group.epoch, change).expect("it is the primary");
                }
                let (by, upto) = (client.at, group.len());
                client.answer = Some(Answer { by, life, upto, told: Told::Done(after) });
            }
            // (That a key is not here may not be so for good either.)
            Verdict::Ask(slot) => {
                self.counts.asked += 1;
                if let Some(Part::Giving { to } | Part::Given { to }) = node.shard.part(slot) {
                    let to = NAMES.iter().position(|name| name == to).expect("a group");
                    let (by, life, upto) = (client.at, group.life(), group.len());
                    client.answer = Some(Answer { by, life, upto, told: Told::Ask(to) });
                }
            }
            // To whom the map says, as this group has seen it: it may be an old one.
            Verdict::Moved(slot) => {
                let map = self.seen[client.at].slots.as_ref();
                let owner = map.and_then(|map| map.get(slot)).map(|owner| owner.group.as_str());
                let owner = NAMES.iter().position(|name| Some(*name) == owner);
                client.at = owner.unwrap_or_else(|| self.dice.below(NAMES.len() as u64) as usize);
            }
            Verdict::InTransit => self.counts.frozen += 1,
            Verdict::Split | Verdict::Crosses => unreachable!("it is about one key"),
        }
    }

    /// An answer comes when a majority has all that it is about, unless the connection ends first.
    fn hear(&mut self, client: &mut Client, answer: Answer) {
        let Answer { by, life, upto, told } = answer;
        let is_lost = self.groups[by].life() != life || self.dice.one_in(50);
        if !is_lost && self.groups[by].committed < upto {
            return;
        }
        client.answer = None;
        match told {
            // What was sent on was not carried out: it is asked for again.
            Told::Ask(to) => {
                if !is_lost {
                    (client.at, client.is_asking) = (to, true);
                }
            }
            // Nobody knows what came of it.
            Told::Done(_) if is_lost => client.current = None,
            Told::Done(answer) => {
                let number = client.current.take().expect("an operation under way");
                let operation = &mut self.history[number];
                (operation.answered_ns, operation.answer) = (Some(self.now), answer);
            }
        }
    }
}
