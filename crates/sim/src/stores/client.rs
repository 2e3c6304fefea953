//! A client of a store: its operations, one after the other, by kernels, READs and chains in turn.
//! What runs is the live client's code; only its requests are carried by the world.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use remora::kernel::{CallFailure, CallStatus};
use remora_nic::{Psn, Time};
use remora_store::client::carried::CarriedClient;
use remora_store::client::{Put, StoreError};
use remora_store::way::call::{Condition, Refused};

use super::CHECKER;
use super::connection::{Connection, Doors, Mailbox};
use super::options::StoreOptions;
use super::server::Spaces;
use super::value::{bytes_of, key_of, value_of};
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
    /// Operations whose ends were seen, and others.
    pub(super) ended: u64,
    pub(super) open: u64,
}

struct Current {
    key: usize,
    /// Its place in the key's history.
    event: usize,
    running: Running,
    until: Time,
}

impl Client {
    pub(super) fn new(host: usize, options: &StoreOptions, dice: Dice) -> Client {
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
            ended: 0,
            open: 0,
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
            let space = spaces[self.space];
            self.code = Some(Code::new(connection.mailbox.clone(), doors.memory, space));
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
        let mut new = || {
            *sight.value += 1;
            *sight.value
        };
        let op = match self.dice.below(8) {
            0..4 => Op::Get,
            4 | 5 => Op::Set(new()),
            6 => Op::Swap(self.seen[key], new()),
            _ => Op::Delete,
        };
        let way = self.dice.pick(&[Way::Kernel, Way::OneSided, Way::Chain]);
        let longest = sight.options.value_max;
        let running = Box::pin(async move {
            let mut code = code;
            let ended = carry_out(&mut code, way, &key_of(at), op, longest).await;
            (code, ended)
        });
        *sight.course += 1;
        let event = sight.history[key].len();
        sight.history[key].push(Event { op, began: *sight.course, ended: None });
        let until = world.now + sight.options.patience;
        self.current = Some(Current { key, event, running, until });
    }

    /// Goes on with the operation that is under way, as far as it goes.
    fn go_on(&mut self, world: &mut World, sight: &mut Sight<'_>) -> Result<(), Violation> {
        while let (Some(current), Some(connection)) = (&mut self.current, &mut self.connection) {
            let mut context = Context::from_waker(Waker::noop());
            if let Poll::Ready((code, ended)) = current.running.as_mut().poll(&mut context) {
                self.code = Some(code);
                return self.end(ended, sight);
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
        ended: Result<Ret, StoreError>,
        sight: &mut Sight<'_>,
    ) -> Result<(), Violation> {
        let Some(Current { key, event, .. }) = self.current.take() else { return Ok(()) };
        let ret = match ended {
            Ok(ret) => ret,
            Err(error) if is_unknown(&error) => {
                self.open += 1;
                return Ok(());
            }
            Err(error) => return Err(Violation::new(CHECKER, format!("a client: {error}"))),
        };
        let event = &mut sight.history[key][event];
        *sight.course += 1;
        event.ended = Some((*sight.course, ret));
        if let (Op::Set(value), _) | (_, Ret::Value(Some(value))) = (event.op, ret) {
            self.seen[key] = value;
        }
        self.ended += 1;
        Ok(())
    }

    /// Gives the connection up. What is under way stays open.
    pub(super) fn disconnect(&mut self, world: &mut World) -> Result<(), Violation> {
        self.open += u64::from(self.current.take().is_some());
        self.code = None;
        let Some(connection) = self.connection.take() else { return Ok(()) };
        connection.close(world)
    }
}

/// Whether an error leaves it open if the operation was carried out: the store has crashed or
/// cannot write its log, or its card could not send the answer.
fn is_unknown(error: &StoreError) -> bool {
    match error {
        StoreError::Refused(refused) => matches!(refused, Refused::ReadOnly | Refused::Full),
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
    key: &[u8],
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
            Ret::Value(found.map(|_| value_of(&value, longest)))
        }
        Op::Set(value) => code.put(key, &bytes(value)).await.map(|_| Ret::Done)?,
        Op::Delete => Ret::Did(code.delete(key).await?),
        Op::Swap(old, new) => {
            let old = bytes(old);
            let how = Put { condition: Condition::Value(&old), ..Put::default() };
            Ret::Did(code.put_with(key, &bytes(new), &how).await?.is_some())
        }
    })
}
