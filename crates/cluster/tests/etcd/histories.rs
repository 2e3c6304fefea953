//! Redis' clients of the group, several at once, while its nodes are killed and stopped: what they
//! saw is written for porcupine (docs/testing.md), which says whether one store could have answered
//! so.

use std::net::SocketAddr;
use std::thread::{scope, sleep};
use std::time::Duration;

use rustix::process::{Signal, kill_process};

use super::judge::{Node, Trial, until};
use super::moving::Moving;
use crate::history::course::{Course, KEYS, name_of, random_numbers};
use crate::history::{Event, Record};

/// Says how many rounds there are; in each, something happens to a node.
const ROUNDS: &str = "REMORA_CLUSTER_ROUNDS";
const CLIENTS: usize = 4;
/// Operations of a client in a round.
const OPERATIONS: usize = 12;
/// A little longer than a lease.
const PAST_THE_LEASE: Duration = Duration::from_millis(2500);

/// What happens to a node in a round.
#[derive(Clone, Copy, Debug)]
enum Harm {
    KillPrimary,
    StopPrimary,
    KillBackup,
    StopBackup,
    Nothing,
}

const HARMS: [Harm; 5] =
    [Harm::StopPrimary, Harm::KillPrimary, Harm::Nothing, Harm::StopBackup, Harm::KillBackup];

impl Trial {
    fn backup(&self) -> usize {
        *self.nodes.keys().find(|name| **name != self.primary).expect("a group of three")
    }

    /// Does harm, and makes it good: a node that was killed has a successor, one that was stopped
    /// goes on.
    fn harm(&mut self, harm: Harm, start: &dyn Fn() -> Node) {
        match harm {
            Harm::KillPrimary => self.replace(self.primary, start),
            Harm::KillBackup => self.replace(self.backup(), start),
            Harm::StopPrimary => self.stop(self.primary),
            Harm::StopBackup => self.stop(self.backup()),
            Harm::Nothing => {}
        }
    }

    fn replace(&mut self, name: usize, start: &dyn Fn() -> Node) {
        drop(self.nodes.remove(&name));
        let next = self.nodes.last_key_value().map_or(0, |(last, _)| last.max(&name) + 1);
        self.nodes.insert(next, start());
    }

    fn stop(&self, name: usize) {
        let pid = self.nodes[&name].pid();
        kill_process(pid, Signal::STOP).unwrap();
        sleep(PAST_THE_LEASE);
        kill_process(pid, Signal::CONT).unwrap();
    }

    /// Waits until the group consists of these nodes, and serves: the next harm finds it whole.
    fn settle(&mut self) {
        self.write(1);
        let mut all: Vec<_> = self.nodes.values().map(Node::number).collect();
        all.sort_unstable();
        let all = all.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
        until("the group is whole", || {
            self.nodes.values_mut().for_each(|node| _ = node.ask("tend"));
            let members = self.ask("members");
            if members == all { Ok(()) } else { Err(format!("{members}, not {all}")) }
        });
        self.write(1);
    }

    fn addresses(&mut self) -> Vec<SocketAddr> {
        let ask = |node: &mut Node| node.ask("redis")?.parse().ok();
        self.nodes.values_mut().filter_map(ask).collect()
    }
}

pub(super) fn run(trial: &mut Trial, start: &dyn Fn() -> Node) {
    let rounds = std::env::var(ROUNDS).map_or(HARMS.len(), |n| n.parse().expect("a number"));
    let (course, mut record) = (Course::default(), Record::create("cluster"));
    let mut random = random_numbers(std::process::id().into());
    let (mut ended, mut open) = (0, 0);
    for round in 0..rounds {
        trial.settle();
        let (nodes, course) = (trial.addresses(), &course);
        let (harm, wait) = (HARMS[round % HARMS.len()], random() % 10);
        let events: Vec<Event> = scope(|scope| {
            let client = |index: usize| {
                let mut client = Moving::new(nodes.clone(), index);
                scope.spawn(move || course.run(index, round, OPERATIONS, &mut client))
            };
            let clients: Vec<_> = (0..CLIENTS).map(client).collect();
            sleep(Duration::from_millis(wait));
            trial.harm(harm, start);
            clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
        });
        for event in &events {
            assert!(event.key < KEYS);
            record.add(&name_of(round, event.key), event);
            ended += u32::from(event.ended.is_some());
            open += u32::from(event.ended.is_none());
        }
    }
    assert!(ended as usize > rounds * CLIENTS, "{ended} operations ended, {open} are open");
    println!("{rounds} rounds of Redis' clients: {ended} operations ended, {open} are open");
    trial.settle();
}
