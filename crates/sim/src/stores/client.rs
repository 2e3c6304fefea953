//! A client of a store: its operations, one after the other, by kernels, READs and chains in turn.
//! What runs is the live client's code; only its requests are carried by the world.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};

use remora::kernel::{CallFailure, CallStatus};
use remora_nic::{Psn, Time};
use remora_store::client::carried::CarriedClient;
use remora_store::client::{Put, StoreError};
use remora_store::way::call::{Condition, Refused};

use super::connection::{Connection, Doors, Mailbox};
use super::options::StoreOptions;
use super::order::{self, number_of_ms};
use super::server::Spaces;
use super::value::{bytes_of, key_of, may_count, value_of};
use super::{CHECKER, StoreTally};
use crate::check::Violation;
use crate::check::store::{Event, Op, Ret};
use crate::dice::Dice;
use crate::world::World;

type Code = CarriedClient<Mailbox>;
/// An operation under way. It has the client's code, and gives it back.
type Running = Pin<Box<dyn Future<Output = (Code, Result<Ret, StoreError>)>>>;

/// How a value is read.
#[derive(Clone, Copy)]
enum Way {
    Kernel,
    OneSided,
    Chain,
}

/// What a client sees of the store when its host looks after its queues.
pub(super) struct Sight<'a> {
    pub(super) options: &'a StoreOptions,
    /// What is open to clients, and for the how-many-th time, while the store is up.
    pub(super) doors: Option<(Doors, u64, Spaces)>,
    /// What all clients have done in the store's present life, by key.
    pub(super) history: &'a mut Vec<Vec<Event>>,
    /// The number of the next event.
    pub(super) course: &'a mut u64,
    /// The next value.
    pub(super) value: &'a mut u32,
}

impl Sight<'_> {
    /// The number of an event that happens now.
    fn number(&mut self, world: &World) -> u64 {
        *self.course = order::next(*self.course, world.now);
        *self.course
    }

    fn new_value(&mut self) -> u32 {
        *self.value += 1;
        *self.value
    }
}

pub(super) struct Client {
    pub(super) host: usize,
    pub(super) left: u64,
    dice: Dice,
    pub(super) connection: Option<Connection>,
    /// The store's life in which the connection was made.
    life: u64,
    /// The tablespace that the connection is about, by its place among the store's.
    space: usize,
    /// Not while an operation is under way.
    code: Option<Code>,
    current: Option<Current>,
    /// By key: the value that was last seen.
    seen: Vec<u32>,
    /// How far its clock is ahead of the world's, in ms; `None`: it begins with each connection.
    ahead_ms: Option<u64>,
    /// What it has done.
    pub(super) tally: StoreTally,
}

struct Current {
    /// Keys, and its place in the history of each.
    events: Vec<(usize, usize)>,
    running: Running,
    until: Time,
}

impl Client {
    pub(super) fn new(host: usize, options: &StoreOptions, mut dice: Dice) -> Client {
        let ahead_ms = match options.mixes {
            true => dice.coin().then(|| dice.scaled(0..=1 << 40)),
            false => Some(0),
        };
        Client {
            host,
            left: options.operations,
            dice,
            connection: None,
            life: 0,
            space: 0,
            code: None,
            current: None,
            seen: vec![0; options.keys],
            ahead_ms,
            tally: StoreTally::default(),
        }
    }

    /// Has it done all its operations?
    pub(super) fn is_done(&self) -> bool {
        self.left == 0 && self.current.is_none()
    }

    pub(super) fn tick(
        &mut self,
        world: &mut World,
        sight: &mut Sight<'_>,
    ) -> Result<(), Violation> {
        let life = sight.doors.map(|(_, life, _)| life);
        if self.connection.is_some() && life != Some(self.life) && self.dice.chance(0.2) {
            self.disconnect(world)?;
        }
        if let (None, Some((doors, life, spaces))) = (&self.connection, sight.doors) {
            let psns = [(); 4].map(|()| Psn::new(self.dice.number() as u32));
            let connect = &sight.options.connect;
            let connection = Connection::new(world, self.host, &doors, connect, psns);
            self.space = match sight.options.spaces {
                1 => 0,
                several => self.dice.below(several as u64) as usize,
            };
            let clock = world.clock.clone();
            let (began, ahead_ms) = self.ahead_ms.map_or((world.now.0, 0), |ahead| (0, ahead));
            let clock_ms = move || (clock.load(Ordering::Relaxed) - began) / 1_000_000 + ahead_ms;
            let (mailbox, space) = (connection.mailbox.clone(), spaces[self.space]);
            self.code = Some(Code::new(mailbox, doors.memory, space, clock_ms));
            (self.connection, self.life) = (Some(connection), life);
        }
        let is_up_to_date = self.connection.is_some() && life == Some(self.life);
        if self.current.is_none() && self.left > 0 && is_up_to_date && self.dice.chance(0.7) {
            self.begin(world, sight);
        }
        self.go_on(world, sight)
    }

    /// Begins an operation.
    fn begin(&mut self, world: &World, sight: &mut Sight<'_>) {
        let Some(code) = self.code.take() else { return };
        self.left -= 1;
        let StoreOptions { keys, spaces, .. } = *sight.options;
        // Every so-many-th key is in the connection's tablespace.
        let own = (keys - self.space).div_ceil(spaces);
        let at = self.dice.below(own as u64) as usize;
        let key = at * spaces + self.space;
        let op = self.draw(world, sight, key);
        self.tally.count(op);
        let way = self.dice.pick(&[Way::Kernel, Way::OneSided, Way::Chain]);
        let longest = sight.options.value_max;
        let running = Box::pin(async move {
            let mut code = code;
            let name = key_of(at);
            let ended = carry_out(&mut code, way, (key, &name), op, longest).await;
            (code, ended)
        });
        let event = Event { op, began: sight.number(world), ended: None };
        let touched = if op == Op::Flush { self.space..keys } else { key..key + 1 };
        let touched = touched.step_by(spaces);
        let events: Vec<_> = touched.map(|key| (key, sight.history[key].len())).collect();
        for &(key, _) in &events {
            sight.history[key].push(event);
        }
        let until = world.now + sight.options.patience;
        self.current = Some(Current { events, running, until });
    }

    /// Draws an operation on a key.
    fn draw(&mut self, world: &World, sight: &mut Sight<'_>, key: usize) -> Op {
        let StoreOptions { mixes, patience, .. } = *sight.options;
        let may_count = mixes && may_count(key);
        if mixes && self.dice.chance(0.2) {
            let expires_ms =
                world.now.0 / 1_000_000 + 1 + self.dice.scaled(0..=patience.as_millis() as u64);
            let until = number_of_ms(expires_ms);
            return match self.dice.below(8) {
                0 => Op::Flush,
                1..5 if !may_count => Op::SetUntil(sight.new_value(), until),
                _ => Op::Touch(until),
            };
        }
        match self.dice.below(8) {
            0..4 => Op::Get,
            4..7 if may_count => Op::Add(1 + self.dice.below(3) as u32),
            4 | 5 => Op::Set(sight.new_value()),
            6 => Op::Swap(self.seen[key], sight.new_value()),
            _ => Op::Delete,
        }
    }

    /// Goes on with the operation that is under way, as far as it goes.
    fn go_on(&mut self, world: &mut World, sight: &mut Sight<'_>) -> Result<(), Violation> {
        while let (Some(current), Some(connection)) = (&mut self.current, &mut self.connection) {
            let mut context = Context::from_waker(Waker::noop());
            if let Poll::Ready((code, ended)) = current.running.as_mut().poll(&mut context) {
                self.code = Some(code);
                return self.end(world, ended, sight);
            }
            match connection.look_after(world) {
                Ok(true) => {}
                Ok(false) if world.now < current.until => return Ok(()),
                // What it was to say, nobody will hear: the connection is of no more use.
                _ => return self.disconnect(world),
            }
        }
        Ok(())
    }

    /// The operation under way has ended.
    fn end(
        &mut self,
        world: &World,
        ended: Result<Ret, StoreError>,
        sight: &mut Sight<'_>,
    ) -> Result<(), Violation> {
        let Some(Current { events, .. }) = self.current.take() else { return Ok(()) };
        let ret = match ended {
            Ok(ret) => ret,
            Err(StoreError::Refused(Refused::Full)) => {
                self.tally.refused += 1;
                Ret::Refused
            }
            Err(error) if is_unknown(&error) => {
                self.tally.open += 1;
                return Ok(());
            }
            Err(error) => return Err(Violation::new(CHECKER, format!("a client: {error}"))),
        };
        let at = sight.number(world);
        for (key, event) in events {
            let event = &mut sight.history[key][event];
            event.ended = Some((at, ret));
            if let (Op::Set(value), Ret::Done) | (_, Ret::Value(Some(value))) = (event.op, ret) {
                self.seen[key] = value;
            }
        }
        self.tally.ended += 1;
        Ok(())
    }

    /// Gives the connection up. What is under way stays open.
    pub(super) fn disconnect(&mut self, world: &mut World) -> Result<(), Violation> {
        self.tally.open += u64::from(self.current.take().is_some());
        self.code = None;
        let Some(connection) = self.connection.take() else { return Ok(()) };
        connection.close(world)
    }
}

/// Whether an error leaves it open if the operation was carried out: the store has crashed or
/// cannot write its log, or its card could not send the answer.
fn is_unknown(error: &StoreError) -> bool {
    match error {
        StoreError::Refused(refused) => *refused == Refused::ReadOnly,
        StoreError::NoKernels => true,
        StoreError::Call(CallFailure::Status(status)) => {
            matches!(*status, CallStatus::UNLOADED | CallStatus::CONGESTED | CallStatus::LATE)
        }
        _ => false,
    }
}

async fn carry_out(
    code: &mut Code,
    way: Way,
    (number, key): (usize, &[u8]),
    op: Op,
    longest: usize,
) -> Result<Ret, StoreError> {
    let bytes = |value| bytes_of(value, longest);
    Ok(match op {
        Op::Get => {
            let mut value = Vec::new();
            let found = match way {
                Way::Kernel => code.get(key, &mut value).await?,
                Way::OneSided => code.get_one_sided(key, &mut value).await?,
                Way::Chain => code.get_by_chain(key, &mut value).await?,
            };
            Ret::Value(found.map(|_| value_of(number, &value, longest)))
        }
        Op::Set(value) => code.put(key, &bytes(value)).await.map(|_| Ret::Done)?,
        Op::SetUntil(value, until) => {
            let how = Put { expires_ms: order::ms_of(until), ..Put::default() };
            code.put_with(key, &bytes(value), &how).await.map(|_| Ret::Done)?
        }
        Op::Touch(until) => Ret::Did(code.touch(key, order::ms_of(until)).await?),
        Op::Add(more) => Ret::Sum(code.count(key, more.into()).await?.try_into().expect("a sum")),
        Op::Flush => code.flush().await.map(|()| Ret::Done)?,
        Op::Delete => Ret::Did(code.delete(key).await?),
        Op::Swap(old, new) => {
            let old = bytes(old);
            let how = Put { condition: Condition::Value(&old), ..Put::default() };
            Ret::Did(code.put_with(key, &bytes(new), &how).await?.is_some())
        }
    })
}
