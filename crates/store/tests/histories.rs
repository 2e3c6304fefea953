//! Histories of all ways in together: kernels, one-sided READs, chains, Redis' and memcached's
//! protocols read and change the same few keys at once, and a judge (stateright) looks for an order
//! of each key's operations that one copy of it would allow.
//!
//! Clients over the card do not always wait for the ends of their operations. A change whose end
//! nobody saw stays open: it takes effect at any later time, or never.
//!
//! Each round has keys of its own, so that histories stay short: a judge takes long for long ones.
//! The histories are written for porcupine, too, where `REMORA_HISTORIES` says to which folder.

#[allow(dead_code, reason = "each test program uses a part of it")]
mod history;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use history::card::{Get, ask};
use history::course::{Client, Course, KEYS, name_of};
use history::redis::{Line, Redis};
use history::value::{appended, bytes_of, value_of};
use history::{Event, Op, Record, Ret};
use remora::kernel::CallFailure;
use remora::{Device, DeviceOptions, wait_for};
use remora_store::client::{AsyncStoreClient, Put, StoreClient, StoreError};
use remora_store::service::{Service, ServiceOptions};
use remora_store::way::call::{Condition, Placement};
use remora_store::way::chain::ChainError;
use remora_store::way::connect::ClientOptions;
use remora_store::way::one_sided::OneSidedError;
use stateright::semantics::{ConsistencyTester, LinearizabilityTester, SequentialSpec};

/// How long anything may take here.
const LIMIT: Duration = Duration::from_secs(120);
const ROUNDS: usize = 400;
/// Operations of a client in a round.
const OPERATIONS: usize = 10;

/// A key, as one copy of it behaves: its value, and whether it has an end. Values are numbers that
/// nobody sets twice.
#[derive(Clone, Debug, Default)]
struct Key(Option<u32>, bool);

impl SequentialSpec for Key {
    type Op = Op;
    type Ret = Ret;

    fn invoke(&mut self, op: &Op) -> Ret {
        match *op {
            Op::Get => Ret::Value(self.0),
            Op::Set(value) => {
                *self = Key(Some(value), false);
                Ret::Done
            }
            Op::Delete => Ret::Did(std::mem::take(self).0.is_some()),
            Op::Swap(old, new) => {
                let is_old = self.0 == Some(old);
                if is_old {
                    *self = Key(Some(new), false);
                }
                Ret::Did(is_old)
            }
            Op::Add(more) => {
                let sum = self.0.unwrap_or(0) + more;
                self.0 = Some(sum);
                Ret::Sum(sum)
            }
            Op::Append(more) => {
                self.0 = Some(self.0.unwrap_or(0) + more);
                Ret::Done
            }
            Op::Flush => {
                *self = Key::default();
                Ret::Done
            }
            Op::End(ends) => {
                let does = self.0.is_some() && (ends || self.1);
                self.1 = self.0.is_some() && ends;
                Ret::Did(does)
            }
            Op::GetEnd(ends) => {
                self.1 = self.0.is_some() && ends;
                Ret::Value(self.0)
            }
            Op::HasEnd => Ret::Value(self.0.map(|_| self.1.into())),
        }
    }
}

/// Whether one copy of a key could have answered so.
fn is_linearizable(history: &[Event]) -> bool {
    let mut steps: Vec<(u64, usize, Option<Ret>)> = Vec::new();
    for (index, event) in history.iter().enumerate() {
        steps.push((event.began, index, None));
        steps.extend(event.ended.map(|(at, ret)| (at, index, Some(ret))));
    }
    steps.sort_by_key(|step| step.0);
    let mut tester = LinearizabilityTester::new(Key::default());
    for (_, index, ended) in steps {
        let Event { client, op, ended: end, .. } = history[index];
        // For the judge, a client that leaves an operation open does nothing else.
        let thread = if end.is_some() { client } else { 1000 + index };
        match ended {
            None => tester.on_invoke(thread, op).expect("one operation at a time"),
            Some(ret) => tester.on_return(thread, ret).expect("it began"),
        };
    }
    tester.is_consistent()
}

/// Judges a history, for as long as that may take.
fn judge(round: usize, key: u64, history: Vec<Event>) {
    let (say, said) = mpsc::channel();
    let mut shown = history.clone();
    thread::spawn(move || say.send(is_linearizable(&history)));
    let verdict = said.recv_timeout(LIMIT);
    shown.sort_by_key(|event| event.began);
    let lines: Vec<String> = shown.iter().map(|event| format!("{event:?}")).collect();
    assert!(
        verdict == Ok(true),
        "round {round}, key {key}: no order was found ({verdict:?}):\n{}",
        lines.join("\n"),
    );
}

/// A client over the card that polls, with its way to read.
struct Polling {
    client: StoreClient,
    get: Get,
    turn: u64,
}

impl Client for Polling {
    fn carry_out(&mut self, key: &str, op: Op) -> Option<Ret> {
        self.turn += 1;
        // A flush that nobody saw the end of would reach into the next round.
        let is_hasty = self.turn.is_multiple_of(3) && op != Op::Flush;
        self.client.set_timeout(if is_hasty { Duration::ZERO } else { LIMIT });
        match ask(&mut self.client, self.get, key.as_bytes(), op) {
            Err(
                StoreError::Call(CallFailure::Timeout(_))
                | StoreError::OneSided(OneSidedError::Timeout(_))
                | StoreError::Chain(ChainError::Timeout(_)),
            ) if is_hasty => None,
            ended => Some(ended.expect("it is served")),
        }
    }
}

/// A client over the card whose operations are futures, which it drops, and that reads in each way
/// in turn.
struct Dropping {
    client: AsyncStoreClient,
    turn: u64,
}

impl Dropping {
    async fn ask(&mut self, key: &[u8], op: Op) -> Result<Ret, StoreError> {
        let client = &mut self.client;
        Ok(match op {
            Op::Get => {
                let mut value = Vec::new();
                let found = match self.turn % 3 {
                    0 => client.get(key, &mut value).await,
                    1 => client.get_one_sided(key, &mut value).await,
                    _ => client.get_by_chain(key, &mut value).await,
                };
                Ret::Value(found?.map(|_| value_of(&value)))
            }
            Op::Set(value) => client.put(key, &bytes_of(value)).await.map(|_| Ret::Done)?,
            Op::Delete => Ret::Did(client.delete(key).await?),
            Op::Swap(old, new) => {
                let old = bytes_of(old);
                // As over the other ways: the new value has no end.
                let how =
                    Put { condition: Condition::Value(&old), expires_ms: 0, ..Put::default() };
                Ret::Did(client.put_with(key, &bytes_of(new), &how).await?.is_some())
            }
            Op::Add(more) => {
                Ret::Sum(client.count(key, more.into()).await?.try_into().expect("a sum"))
            }
            Op::Append(more) => {
                let how = Put { placement: Placement::Append, ..Put::default() };
                client.put_with(key, &appended(more), &how).await?.expect("no condition");
                Ret::Done
            }
            Op::Flush => client.flush().await.map(|()| Ret::Done)?,
            Op::End(_) | Op::GetEnd(_) | Op::HasEnd => panic!("{op:?} is of Redis' clients"),
        })
    }
}

impl Client for Dropping {
    fn carry_out(&mut self, key: &str, op: Op) -> Option<Ret> {
        self.turn += 1;
        let patience = [Duration::ZERO, Duration::from_micros(self.turn % 100), LIMIT];
        let patience = if op == Op::Flush { LIMIT } else { patience[(self.turn / 3 % 3) as usize] };
        wait_for(self.ask(key.as_bytes(), op), patience).map(|done| done.expect("it is served"))
    }
}

impl Client for Redis {
    fn carry_out(&mut self, key: &str, op: Op) -> Option<Ret> {
        let ended = self.ask(key, op).expect("it is served");
        Some(ended.unwrap_or_else(|answer| panic!("{op:?}: {answer}")))
    }

    fn sees_ends(&self) -> bool {
        true
    }
}

struct Memcached(Line, u64);

impl Memcached {
    /// The value, and the number by which a `cas` knows it.
    fn gets(&mut self, key: &str) -> Option<(u32, String)> {
        let answer = self.ask(format!("gets {key}\r\n").as_bytes());
        if answer == "END" {
            return None;
        }
        let words: Vec<&str> = answer.split(' ').collect();
        let value = self.0.value(words[3]).unwrap();
        assert_eq!(self.0.line().unwrap(), "END");
        Some((value, words[4].to_owned()))
    }

    fn store(&mut self, head: &str, value: u32, tail: &str) -> String {
        let bytes = bytes_of(value);
        let mut request = format!("{head} 0 0 {}{tail}\r\n", bytes.len()).into_bytes();
        request.extend(bytes);
        request.extend(b"\r\n");
        self.ask(&request)
    }

    /// Adds to a counter in two ways in turn: by one request, and as those do who know only the
    /// old ones.
    fn add(&mut self, key: &str, more: u32) -> u32 {
        self.1 += 1;
        if self.1.is_multiple_of(2) {
            let answer = self.ask(format!("ma {key} N0 J{more} D{more} v\r\n").as_bytes());
            assert!(answer.starts_with("VA "), "{answer}");
            return self.0.line().unwrap().parse().unwrap();
        }
        loop {
            let answer = self.ask(format!("incr {key} {more}\r\n").as_bytes());
            if answer != "NOT_FOUND" {
                return answer.trim_end().parse().unwrap();
            }
            let digits = more.to_string();
            let add = format!("add {key} 0 0 {}\r\n{digits}\r\n", digits.len());
            if self.ask(add.as_bytes()) == "STORED" {
                return more;
            }
        }
    }

    fn ask(&mut self, request: &[u8]) -> String {
        self.0.ask(request).unwrap()
    }
}

impl Client for Memcached {
    fn carry_out(&mut self, key: &str, op: Op) -> Option<Ret> {
        let answer = match op {
            Op::Get => return Some(Ret::Value(self.gets(key).map(|(value, _)| value))),
            Op::Set(value) => self.store(&format!("set {key}"), value, ""),
            Op::Add(more) => return Some(Ret::Sum(self.add(key, more))),
            Op::Append(more) => {
                let mut request = format!("ms {key} {more} MA N0\r\n").into_bytes();
                request.extend([&appended(more)[..], b"\r\n"].concat());
                self.ask(&request)
            }
            Op::Flush => self.ask(b"flush_all\r\n"),
            Op::Delete => self.ask(format!("delete {key}\r\n").as_bytes()),
            Op::End(_) | Op::GetEnd(_) | Op::HasEnd => panic!("{op:?} is of Redis' clients"),
            // What has another number has another value: values are set once.
            Op::Swap(old, new) => match self.gets(key) {
                Some((value, cas)) if value == old => {
                    self.store(&format!("cas {key}"), new, &format!(" {cas}"))
                }
                _ => return Some(Ret::Did(false)),
            },
        };
        Some(match (op, answer.as_str()) {
            (Op::Set(_), "STORED") | (Op::Flush, "OK") | (Op::Append(_), "HD") => Ret::Done,
            (Op::Delete, "DELETED") | (Op::Swap(..), "STORED") => Ret::Did(true),
            (Op::Delete | Op::Swap(..), "NOT_FOUND") | (Op::Swap(..), "EXISTS") => Ret::Did(false),
            (op, answer) => panic!("{op:?}: {answer}"),
        })
    }
}

fn serve() -> Service {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let device = DeviceOptions::new().embedded().open().unwrap();
    let mut options = ServiceOptions::new(64 << 20, 7);
    options.door.port = 7850;
    options.fronts.threads = 2;
    options.fronts.redis.push(any);
    options.fronts.memcached.push(any);
    Service::start(&device, &options).unwrap()
}

fn clients(service: &Service) -> Vec<Box<dyn Client>> {
    let options = ClientOptions::default();
    let polling = |get: Get| -> Box<dyn Client> {
        let device = Device::open().unwrap();
        let client = StoreClient::connect(&device, service.address(), &options).unwrap();
        Box::new(Polling { client, get, turn: 0 })
    };
    let device = Device::open().unwrap();
    let connecting = AsyncStoreClient::connect(&device, service.address(), &options);
    let client = wait_for(connecting, LIMIT).expect("a connection in time").unwrap();
    let fronts = service.fronts().unwrap();
    let line = |at| Line::new(at, LIMIT).expect("a connection");
    vec![
        polling(StoreClient::get),
        polling(StoreClient::get_one_sided),
        polling(StoreClient::get_by_chain),
        Box::new(Redis(line(fronts.redis()[0]))),
        Box::new(Redis(line(fronts.redis()[0]))),
        Box::new(Memcached(line(fronts.memcached()[0]), 0)),
        Box::new(Dropping { client, turn: 0 }),
    ]
}

#[test]
fn all_ways_in_together_are_linearizable() {
    let service = serve();
    let (mut clients, mut course) = (clients(&service), Course::default());
    (course.flushes, course.grows, course.keys) = (true, true, KEYS + 1);
    course.expires = true;
    let mut record = Record::create("store");
    let mut ended = vec![0; clients.len()];
    let mut open = 0;
    for round in 0..ROUNDS {
        let course = &course;
        let events: Vec<Event> = thread::scope(|scope| {
            let mut threads = Vec::new();
            for (index, client) in clients.iter_mut().enumerate() {
                threads.push(
                    scope.spawn(move || course.run(index, round, OPERATIONS, client.as_mut())),
                );
            }
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        for event in &events {
            ended[event.client] += u32::from(event.ended.is_some());
            open += u32::from(event.ended.is_none());
            record.add(&name_of(round, event.key), event);
        }
        for key in 0..course.keys {
            judge(round, key, events.iter().filter(|event| event.key == key).copied().collect());
        }
    }
    assert!(ended.iter().all(|ended| *ended > 20) && open > 10, "{ended:?}, {open} open");
}

/// An event in a few words: client, operation, when it began, and how it ended.
type Said = (usize, Op, u64, Option<(u64, Ret)>);

fn events(events: &[Said]) -> Vec<Event> {
    let event = |&(client, op, began, ended)| Event { client, key: 0, op, began, ended };
    events.iter().map(event).collect()
}

#[test]
fn the_judge_knows_what_cannot_be() {
    let set = (0, Op::Set(1), 0, Some((1, Ret::Done)));
    let open = (0, Op::Set(2), 2, None);
    let get = |began, value| (1, Op::Get, began, Some((began + 1, Ret::Value(value))));
    assert!(is_linearizable(&events(&[set, get(2, Some(1))])));
    assert!(!is_linearizable(&events(&[set, get(2, None)])), "an old value");
    // A change whose end nobody saw happens late, or never, and not twice.
    assert!(is_linearizable(&events(&[set, open, get(3, Some(1)), get(5, Some(2))])));
    assert!(is_linearizable(&events(&[set, open, get(3, Some(1)), get(5, Some(1))])));
    let back = [set, open, get(3, Some(2)), get(5, Some(1))];
    assert!(!is_linearizable(&events(&back)), "a value that goes back");
    let swap = (2, Op::Swap(1, 3), 4, Some((9, Ret::Did(true))));
    assert!(is_linearizable(&events(&[set, swap, get(5, Some(1)), get(7, Some(3))])));
    assert!(!is_linearizable(&events(&[set, swap, get(5, Some(3)), get(7, Some(1))])));
    let add = |client, sum| (client, Op::Add(2), 2, Some((3, Ret::Sum(sum))));
    assert!(is_linearizable(&events(&[set, add(1, 3), add(2, 5), get(4, Some(5))])));
    assert!(!is_linearizable(&events(&[set, add(1, 3), add(2, 3)])), "one is lost");
    let append = |client| (client, Op::Append(2), 2, Some((3, Ret::Done)));
    assert!(is_linearizable(&events(&[set, append(1), append(2), get(4, Some(5))])));
    assert!(
        !is_linearizable(&events(&[set, append(1), append(2), get(4, Some(3))])),
        "one is lost"
    );
    let ends = |began, is| (1, Op::HasEnd, began, Some((began + 1, Ret::Value(is))));
    let expire = (0, Op::End(true), 2, Some((3, Ret::Did(true))));
    let persist = |did| (2, Op::End(false), 4, Some((5, Ret::Did(did))));
    let getex = |is| (2, Op::GetEnd(is), 4, Some((5, Ret::Value(Some(1)))));
    let again = (0, Op::Set(2), 4, Some((5, Ret::Done)));
    assert!(is_linearizable(&events(&[set, ends(2, Some(0)), ends(4, Some(0))])));
    assert!(is_linearizable(&events(&[set, expire, ends(6, Some(1))])));
    assert!(!is_linearizable(&events(&[set, expire, ends(6, Some(0))])), "an end is lost");
    assert!(is_linearizable(&events(&[set, expire, persist(true), ends(6, Some(0))])));
    assert!(!is_linearizable(&events(&[set, persist(true)])), "there is no end to take away");
    assert!(!is_linearizable(&events(&[set, expire, persist(false)])), "there is one");
    assert!(!is_linearizable(&events(&[set, expire, persist(true), ends(6, Some(1))])));
    assert!(is_linearizable(&events(&[set, expire, getex(false), ends(6, Some(0))])));
    assert!(is_linearizable(&events(&[set, getex(true), ends(6, Some(1))])));
    assert!(!is_linearizable(&events(&[set, expire, again, ends(6, Some(1))])), "a new value");
    assert!(!is_linearizable(&events(&[expire])), "there is no key");
    let flush = (2, Op::Flush, 2, Some((3, Ret::Done)));
    assert!(is_linearizable(&events(&[set, flush, get(4, None)])));
    assert!(!is_linearizable(&events(&[set, flush, get(4, Some(1))])), "it is back");
}
