//! A client of Redis' that goes where it is sent, whatever becomes of the nodes.

use std::net::SocketAddr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::history::course::Client;
use crate::history::redis::{Line, Redis};
use crate::history::{Op, Ret};

/// How long anybody may take to carry something out, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a client waits for an answer. What did not come by then stays open.
const ANSWER: Duration = Duration::from_millis(1500);

/// A client that asks the node that it is sent to, and else one of the nodes that it knows.
pub(crate) struct Moving {
    nodes: Vec<SocketAddr>,
    /// Which of them is the next one to be asked.
    next: usize,
    at: SocketAddr,
    connection: Option<Redis>,
    /// Whether the node to be asked is asked once only, as its answer to this.
    is_asking: bool,
    /// Each key is two, which are read and set together.
    pub(crate) of_pairs: bool,
}

impl Moving {
    /// A client that begins with the node of this index.
    pub(crate) fn new(nodes: Vec<SocketAddr>, first: usize) -> Moving {
        let (at, next) = (nodes[first % nodes.len()], first + 1);
        Moving { nodes, next, at, connection: None, is_asking: false, of_pairs: false }
    }

    fn ask(&mut self, key: &str, op: Op) -> Said {
        let connection = match self.connection.take() {
            Some(connection) => Ok(connection),
            None => Line::new(self.at, ANSWER).map(Redis),
        };
        let is_asking = std::mem::take(&mut self.is_asking);
        let asked = connection.and_then(|mut redis| {
            if is_asking {
                redis.0.ask(b"*1\r\n$6\r\nASKING\r\n")?;
            }
            Ok(redis)
        });
        // Where nothing was sent, nothing is carried out.
        let Ok(mut redis) = asked else { return Said::Nothing };
        let answer = if self.of_pairs { redis.ask_pair(key, op) } else { redis.ask(key, op) };
        let said = match answer {
            Ok(Ok(ret)) => Said::Done(ret),
            Ok(Err(answer)) => Said::of(&answer),
            Err(_) => Said::Lost,
        };
        if matches!(said, Said::Done(_) | Said::Again) {
            self.connection = Some(redis);
        }
        said
    }

    /// Asks another node from now on: this one, or the next of those that are known.
    fn turn_away(&mut self, to: Option<SocketAddr>) {
        self.connection = None;
        self.at = to.unwrap_or_else(|| {
            self.next += 1;
            self.nodes[self.next % self.nodes.len()]
        });
    }
}

/// What a node says to an operation.
enum Said {
    Done(Ret),
    /// Not now; it was not carried out.
    Again,
    /// Not here, but there, for this once or until told otherwise.
    Elsewhere {
        at: Option<SocketAddr>,
        is_once: bool,
    },
    /// Nobody heard it.
    Nothing,
    /// It may have been carried out or not.
    Lost,
}

impl Said {
    /// An error of Redis'.
    fn of(answer: &str) -> Said {
        let at = answer.rsplit(' ').next().and_then(|at| at.parse().ok());
        match answer.split(' ').next() {
            Some("-MOVED") => Said::Elsewhere { at, is_once: false },
            Some("-ASK") => Said::Elsewhere { at, is_once: true },
            Some("-TRYAGAIN") => Said::Again,
            Some("-CLUSTERDOWN") => Said::Nothing,
            _ => Said::Lost,
        }
    }
}

impl Client for Moving {
    fn carry_out(&mut self, key: &str, op: Op) -> Option<Ret> {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            match self.ask(key, op) {
                Said::Done(ret) => return Some(ret),
                Said::Again => {}
                Said::Elsewhere { at, is_once } => {
                    self.turn_away(at);
                    self.is_asking = is_once;
                }
                Said::Nothing => self.turn_away(None),
                Said::Lost => {
                    self.turn_away(None);
                    return None;
                }
            }
            sleep(Duration::from_millis(2));
        }
        panic!("nobody takes {op:?} of {key}");
    }
}
