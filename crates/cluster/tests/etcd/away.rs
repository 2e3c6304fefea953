//! etcd is away: all its members, a majority of them, or one. They stand still and go on, or are
//! killed and begin again with what they had.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::judge::{Node, Trial, until};
use super::member::Etcd;
use super::node::LEASE;

/// How often etcd goes until a write is seen after that: on a busy machine, the lease may be over
/// before anybody has asked.
const TRIES: usize = 10;

/// What happens to members of etcd.
#[derive(Clone, Copy, Debug)]
enum Harm {
    Stop,
    Kill,
}

pub(super) fn run(trial: &mut Trial, etcd: &mut Etcd) {
    for harm in [Harm::Stop, Harm::Kill] {
        // One of the pairs is without etcd's leader.
        for members in [&[0, 1][..], &[1, 2], &[0, 2], &[0, 1, 2]] {
            leave_without(trial, etcd, members, harm);
        }
    }
    for member in 0..3 {
        leave_without_one(trial, etcd, member);
    }
}

/// While no majority of etcd is there, the primary serves until its lease ends, and then nobody;
/// afterwards somebody serves again, and has all that was acknowledged.
fn leave_without(trial: &mut Trial, etcd: &mut Etcd, members: &[usize], harm: Harm) {
    let seen = (1..=TRIES).find(|_| {
        // (It finds who the primary is, and has a lease.)
        trial.write(1);
        for member in members {
            match harm {
                Harm::Stop => etcd.signal_one(*member, Signal::STOP),
                Harm::Kill => etcd.kill(*member),
            }
        }
        let served = serve_without_etcd(trial);
        say_why(trial);
        etcd.mend();
        let took = trial.write(50);
        println!("{harm:?} {members:?} of etcd: {served} served; then the next after {took:?}");
        trial.check();
        served > 0
    });
    assert!(seen.is_some(), "a primary whose lease holds serves nobody without etcd");
    until("nodes say that etcd answers again", || {
        trial.all_say(|status| status.contains("service: None"))
    });
}

/// How many writes and reads are answered though etcd has gone: right answers, and none to what is
/// asked when every lease is over.
fn serve_without_etcd(trial: &mut Trial) -> u32 {
    let (gone, mut served) = (Instant::now(), 0);
    while gone.elapsed() < 4 * LEASE {
        let is_over = gone.elapsed() > LEASE;
        let answered = u32::from(trial.offer()) + trial.read_last();
        assert!(!is_over || answered == 0, "a lease lasts although nobody can have renewed it");
        served += answered;
    }
    served
}

/// All nodes know that it is etcd that they lack, and say so as long as that is the case.
fn say_why(trial: &mut Trial) {
    let says_why = |status: &str| status.contains("service: Some(");
    until("all nodes say why etcd does not answer", || trial.all_say(says_why));
    let start = Instant::now();
    while start.elapsed() < 2 * LEASE {
        let all_say = trial.all_say(says_why);
        assert!(all_say.is_ok(), "nodes say no more why etcd does not answer: {all_say:#?}");
    }
}

/// One of etcd's three members stands still: whom a node asks first, it asks another.
fn leave_without_one(trial: &mut Trial, etcd: &Etcd, member: usize) {
    etcd.signal_one(member, Signal::STOP);
    let start = Instant::now();
    let mut longest = Duration::ZERO;
    while start.elapsed() < 4 * LEASE {
        longest = longest.max(trial.write(10));
    }
    println!("member {member} of etcd stood still: the longest wait was {longest:?}");
    etcd.signal_one(member, Signal::CONT);
    trial.check();
}

impl Trial {
    /// Asks each node once to take the next write; whether one has acknowledged it. If not, it may
    /// be there or not.
    fn offer(&mut self) -> bool {
        let put = format!("put key{0} value{0}", self.written);
        let takes = |node: &mut Node| node.ask(&put).is_some_and(|answer| answer == "ok");
        let is_taken = self.nodes.values_mut().any(takes);
        self.written += u64::from(is_taken);
        is_taken
    }

    /// Asks each node for the last write; how many have answered. An answer is right.
    fn read_last(&mut self) -> u32 {
        let last = self.written - 1;
        let (get, right) = (format!("get key{last}"), format!("value{last}"));
        let mut answered = 0;
        for node in self.nodes.values_mut() {
            let Some(answer) = node.ask(&get).filter(|it| !it.starts_with("no:")) else { continue };
            assert_eq!(answer, right, "without etcd, a node answers {get}");
            answered += 1;
        }
        answered
    }
}
