//! The executor: keeps deployed kernels and invocations, and decides which invocation runs.

use core::hash::BuildHasherDefault;
use core::task::Poll;
use std::collections::{HashMap, VecDeque};

use remora_nic::Time;
use remora_nic::kernel::{Buffer, Busy, Call, KernelIo, Passing, Payload, Reply, Taken, Verdict};
use remora_nic::queue::Status;

use super::CallStatus;
use super::caught::caught;
use super::context::{Context, poll_with};
use super::deploy::{DeployError, Deployed, Deployment, KernelInfo, Program};
use super::fallback::{FallbackCall, Host};
use super::grant::Grant;
use super::hasher::NumberHasher;
use super::invocation::{Invocation, NOBODY, OBJECT_MAX, STAGE, Wait, find, token};
use super::limits::ExecutorLimits;
use super::pool::Pool;
use super::sleeping::Sleeping;
use super::tap::{Bound, Tap, TapInfo, TapIo};
use super::timing::Timing;
use super::turn::Turn;

/// Runs kernels for a card; see [`remora_nic::Nic::set_kernels`].
#[derive(Debug)]
pub struct Executor {
    limits: ExecutorLimits,
    timing: Option<Box<dyn Timing>>,
    /// By client and op-code: each client of a card has op-codes of its own.
    opcodes: HashMap<(u16, u64), u32, BuildHasherDefault<NumberHasher>>,
    programs: Vec<Option<Deployed>>,
    free_programs: Vec<u32>,
    /// The card's own kernels that have ended: see [`Executor::take_ended`].
    ended: Vec<Box<dyn Program>>,
    invocations: Vec<Invocation>,
    free: Vec<u32>,
    /// Numbers of invocations that can run.
    ready: VecDeque<u32>,
    /// Numbers of invocations that wait for room to send.
    starved: Vec<u32>,
    /// Those that wait for memory, or that a time limit ends.
    sleeping: Sleeping,
    buffers: Pool,
    taps: Vec<Option<Bound>>,
    host: Host,
    /// Invocations that ended with their queue pair and that the card has not counted yet.
    dropped: u64,
    /// Taps that were stopped without the card at hand, and that it has not counted yet.
    stopped: u64,
}

impl Executor {
    /// An executor without kernels. `limits` hold for its whole life.
    pub fn new(limits: ExecutorLimits) -> Executor {
        let limits = ExecutorLimits { invocations: limits.invocations.clamp(1, 4096), ..limits };
        Executor {
            limits,
            timing: None,
            opcodes: HashMap::default(),
            programs: Vec::new(),
            free_programs: Vec::new(),
            ended: Vec::new(),
            invocations: Vec::new(),
            free: Vec::new(),
            ready: VecDeque::new(),
            starved: Vec::new(),
            sleeping: Sleeping::default(),
            buffers: Pool::new(limits.result_bytes),
            taps: Vec::new(),
            host: Host::default(),
            dropped: 0,
            stopped: 0,
        }
    }

    /// Sets how long memory accesses take, for simulated cards.
    pub fn set_timing(&mut self, timing: Option<Box<dyn Timing>>) {
        self.timing = timing;
    }

    /// Says whose a client of the card is. All clients of a user leave invocations, and buffers for
    /// results, to others.
    pub fn set_user(&mut self, client: u16, user: u32) {
        self.buffers.owners.set_user(client, user);
    }

    /// Deploys a kernel for an op-code. `code` runs its invocations.
    ///
    /// # Errors
    /// See [`DeployError`]. After an error nothing has changed.
    pub fn deploy(
        &mut self,
        opcode: u64,
        deployment: Deployment,
        code: Box<dyn Program>,
    ) -> Result<(), DeployError> {
        self.deploy_for((0, opcode), deployment, code)
    }

    /// As [`Executor::deploy`], for calls that come by the queue pairs of one client of the card.
    ///
    /// # Errors
    /// See [`DeployError`]. After an error nothing has changed.
    pub fn deploy_for(
        &mut self,
        (client, opcode): (u16, u64),
        deployment: Deployment,
        code: Box<dyn Program>,
    ) -> Result<(), DeployError> {
        let used = self.programs.len() - self.free_programs.len();
        let refusal = if self.opcodes.contains_key(&(client, opcode)) {
            Some(DeployError::Taken(opcode))
        } else {
            (used >= self.limits.kernels).then_some(DeployError::Full(self.limits.kernels))
        };
        if let Some(refusal) = refusal {
            self.set_aside(client, code);
            return Err(refusal);
        }
        let (calls, failed, running, retired) = (0, 0, 0, false);
        let deployed =
            Deployed { client, opcode, deployment, code, calls, failed, running, retired };
        let at = match self.free_programs.pop() {
            Some(at) => {
                self.programs[at as usize] = Some(deployed);
                at
            }
            None => {
                self.programs.push(Some(deployed));
                self.programs.len() as u32 - 1
            }
        };
        self.opcodes.insert((client, opcode), at);
        Ok(())
    }

    /// Deploys a kernel in place of the one that has the op-code. New calls go to the new kernel;
    /// calls in flight end with the old one.
    ///
    /// # Errors
    /// See [`DeployError`]. After an error nothing has changed.
    pub fn replace(
        &mut self,
        opcode: u64,
        deployment: Deployment,
        code: Box<dyn Program>,
    ) -> Result<(), DeployError> {
        self.replace_for((0, opcode), deployment, code)
    }

    /// As [`Executor::replace`], for a client's kernel.
    ///
    /// # Errors
    /// See [`DeployError`]. After an error nothing has changed.
    pub fn replace_for(
        &mut self,
        at: (u16, u64),
        deployment: Deployment,
        code: Box<dyn Program>,
    ) -> Result<(), DeployError> {
        let Some(old) = self.opcodes.remove(&at) else {
            self.set_aside(at.0, code);
            return Err(DeployError::Unknown(at.1));
        };
        if let Err(error) = self.deploy_for(at, deployment, code) {
            self.opcodes.insert(at, old);
            return Err(error);
        }
        if let Some(program) = self.programs[old as usize].as_mut() {
            program.retired = true;
        }
        self.bury(old);
        Ok(())
    }

    /// Takes out the kernels that have ended, those of clients aside. What they own may need the
    /// card when it is dropped, as a region does that is then deregistered: so the caller drops
    /// them when the card is not lent to the executor any more.
    pub fn take_ended(&mut self) -> Vec<Box<dyn Program>> {
        core::mem::take(&mut self.ended)
    }

    fn set_aside(&mut self, client: u16, code: Box<dyn Program>) {
        if client == 0 {
            self.ended.push(code);
        }
    }

    /// Removes a kernel, and ends its invocations with [`CallStatus::UNLOADED`].
    ///
    /// # Errors
    /// No kernel is deployed for the op-code.
    pub fn undeploy(&mut self, io: &mut KernelIo<'_>, opcode: u64) -> Result<(), DeployError> {
        self.undeploy_for(io, (0, opcode))
    }

    /// As [`Executor::undeploy`], for a client's kernel.
    ///
    /// # Errors
    /// No kernel is deployed for the client's op-code.
    pub fn undeploy_for(
        &mut self,
        io: &mut KernelIo<'_>,
        at: (u16, u64),
    ) -> Result<(), DeployError> {
        let at = self.opcodes.remove(&at).ok_or(DeployError::Unknown(at.1))?;
        if let Some(program) = self.programs[at as usize].as_mut() {
            program.retired = true;
        }
        for index in 0..self.invocations.len() {
            let invocation = &self.invocations[index];
            if invocation.live && invocation.wait != Wait::Host && invocation.program == at {
                self.finish(io, index as u32, Err(CallStatus::UNLOADED));
            }
        }
        self.bury(at);
        Ok(())
    }

    /// The deployed kernels, sorted by op-code.
    pub fn list(&self) -> Vec<KernelInfo> {
        self.list_of(0)
    }

    /// A client's deployed kernels, sorted by op-code.
    pub fn list_of(&self, client: u16) -> Vec<KernelInfo> {
        let deployed = self.programs.iter().flatten();
        let deployed = deployed.filter(|program| !program.retired && program.client == client);
        let mut list: Vec<_> = deployed.map(Deployed::info).collect();
        list.sort_by_key(|info| info.opcode);
        list
    }

    /// The number of invocations in flight.
    pub fn running(&self) -> usize {
        self.invocations.len() - self.free.len()
    }

    /// Adds a kernel for streams. Bind the number that it returns with
    /// [`remora_nic::Nic::bind_kernel`].
    pub fn add_tap(&mut self, grants: Vec<Grant>, tap: Box<dyn Tap>) -> u32 {
        let bound = Some(Bound::new(grants, tap));
        match self.taps.iter().position(Option::is_none) {
            Some(at) => {
                self.taps[at] = bound;
                at as u32 + 1
            }
            None => {
                self.taps.push(bound);
                self.taps.len() as u32
            }
        }
    }

    /// Replaces a kernel for streams from the next payload on. Returns the one that there was;
    /// without one, it returns `tap`. The caller drops it as those of [`Executor::take_ended`].
    pub fn replace_tap(
        &mut self,
        number: u32,
        grants: Vec<Grant>,
        tap: Box<dyn Tap>,
    ) -> Box<dyn Tap> {
        match self.slot(number).and_then(Option::as_mut) {
            Some(old) => core::mem::replace(old, Bound::new(grants, tap)).tap,
            None => tap,
        }
    }

    /// Removes a kernel for streams, if there is one; its streams pass unchanged. The caller drops
    /// it as those of [`Executor::take_ended`].
    pub fn remove_tap(&mut self, number: u32) -> Option<Box<dyn Tap>> {
        self.slot(number)?.take().map(|bound| bound.tap)
    }

    /// The counters of a kernel for streams.
    pub fn tap(&self, number: u32) -> Option<TapInfo> {
        let at = (number as usize).checked_sub(1)?;
        self.taps.get(at)?.as_ref().map(|bound| bound.info)
    }

    fn slot(&mut self, number: u32) -> Option<&mut Option<Bound>> {
        self.taps.get_mut((number as usize).checked_sub(1)?)
    }

    /// The kernel for streams with this number, if it has not been stopped.
    fn bound(&mut self, number: u32) -> Option<&mut Bound> {
        self.slot(number)?.as_mut().filter(|bound| !bound.has_stopped())
    }

    /// Sends calls whose op-code has no kernel to the host, also those that wait for a fallback
    /// before it; returns the fallback's number. The card's data path calls `tell` for each call,
    /// so `tell` must not block.
    pub fn set_fallback(&mut self, tell: Box<dyn Fn() + Send>) -> u32 {
        self.host.serve(tell)
    }

    /// Ends the host's fallback, unless another has its place. Calls that wait for the host end
    /// with [`CallStatus::UNAVAILABLE`].
    pub fn end_fallback(&mut self, io: &mut KernelIo<'_>, number: u32) {
        if !self.host.end(number) {
            return;
        }
        for index in 0..self.invocations.len() {
            let invocation = &self.invocations[index];
            if invocation.live && invocation.wait == Wait::Host {
                self.finish(io, index as u32, Err(CallStatus::UNAVAILABLE));
            }
        }
    }

    /// Takes the oldest call that waits for the host; `None`, too, if another fallback has the
    /// place of this one.
    pub fn next_fallback(&mut self, number: u32) -> Option<FallbackCall> {
        self.host.next(number)
    }

    /// Answers a call that came from [`Executor::next_fallback`]. Does nothing if the call has
    /// ended because its queue pair has.
    pub fn answer(&mut self, io: &mut KernelIo<'_>, id: u32, status: CallStatus, bytes: &[u8]) {
        let Some(index) = self.find(id) else { return };
        if self.invocations[index as usize].wait != Wait::Host {
            return;
        }
        let invocation = &mut self.invocations[index as usize];
        let result = if status != CallStatus::OK {
            Err(status)
        } else if bytes.len() > invocation.call.header.max_len as usize {
            Err(CallStatus::TOO_LONG)
        } else if bytes.is_empty() {
            Ok(())
        } else {
            match self.buffers.take(invocation.account, bytes.len()) {
                Some(mut out) => {
                    out.extend_from_slice(bytes);
                    invocation.out = Some(out);
                    Ok(())
                }
                None => Err(CallStatus::MEMORY),
            }
        };
        self.finish(io, index, result);
    }

    // --- invocations ----------------------------------------------------------------------------

    fn id(&self, index: u32) -> u32 {
        u32::from(self.invocations[index as usize].generation) << 16 | index
    }

    fn find(&self, id: u32) -> Option<u32> {
        find(&self.invocations, id)
    }

    /// Has an invocation looked at when it is `at`.
    fn sleep(&mut self, at: Time, id: u32) {
        let (running, invocations) = (self.running(), &self.invocations);
        self.sleeping.add(at, id, running, |id| find(invocations, id).is_some());
    }

    /// How many of the calls in flight are so.
    fn count(&self, is_so: impl Fn(&Call) -> bool) -> usize {
        self.invocations.iter().filter(|other| other.live && is_so(&other.call)).count()
    }

    /// May another call begin? A user has at most as many as are left for others; a client, and a
    /// queue pair, as many as are left to its user. Each may always have one.
    fn may_begin(&self, call: &Call) -> bool {
        let (all, client) = (self.running(), call.client);
        let free = self.limits.invocations - all;
        let limit = if client == 0 { usize::MAX } else { self.limits.client_invocations };
        // To count takes time, and nobody has more than all of them.
        if all < free.saturating_sub(all).min(limit) {
            return true;
        }
        let owners = &self.buffers.owners;
        let user = owners.user_of(client);
        let of_user = user.map_or(0, |_| self.count(|other| owners.user_of(other.client) == user));
        let left = free.saturating_sub(of_user).max(1);
        let of_client = if client == 0 { 0 } else { self.count(|other| other.client == client) };
        of_user < free.max(1)
            && of_client < left.min(limit)
            && self.count(|other| other.qpn == call.qpn) < left
    }

    /// A place for a call, if it may begin.
    fn place(&mut self, call: &Call) -> Option<u32> {
        let account = self.buffers.owners.account(call.qpn, call.client);
        if !self.may_begin(call) || !self.buffers.may_begin(account) {
            return None;
        }
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.invocations.len() >= self.limits.invocations => return None,
            None => {
                self.invocations.push(Invocation::new(*call));
                self.invocations.len() as u32 - 1
            }
        };
        self.invocations[index as usize].account = account;
        Some(index)
    }

    /// Runs an invocation, which starts its kernel the first time, with payload that has just
    /// arrived. Payload that the kernel does not take is kept. Returns what is left of `most`
    /// steps.
    fn run(&mut self, io: &mut KernelIo<'_>, index: u32, chunk: &[u8], most: u32) -> u32 {
        let id = self.id(index);
        let invocation = &mut self.invocations[index as usize];
        let Some(program) = self.programs[invocation.program as usize].as_mut() else {
            return most;
        };
        let (context, mut started) = (Context::of(invocation), invocation.cell);
        invocation.wait = Wait::Turn;
        let turn = Turn {
            io: &mut *io,
            invocation,
            buffers: &mut self.buffers,
            grants: &program.deployment.grants,
            timing: self.timing.as_deref_mut(),
            id,
            chunk: (!chunk.is_empty()).then_some(chunk),
            steps: most,
            taken: 0,
        };
        let code = &mut program.code;
        let (polled, turn) = poll_with(turn, |cx| {
            caught(|| {
                let cell = *started.get_or_insert_with(|| code.start(context));
                code.poll(cell, cx)
            })
        });
        if turn.taken > 0 {
            turn.io.pay(turn.invocation.call.client, turn.taken);
        }
        let Turn { invocation, chunk: left, steps, .. } = turn;
        invocation.cell = started.filter(|_| !matches!(polled, Some(Poll::Ready(_))));
        let wait = invocation.wait;
        match polled {
            None => self.finish(io, index, Err(CallStatus::TRAP)),
            Some(Poll::Ready(result)) => self.finish(io, index, result),
            Some(Poll::Pending) => {
                invocation.staged.extend_from_slice(left.unwrap_or_default());
                match wait {
                    // The kernel waits for something that is not the card's, and no event would
                    // make it run again.
                    Wait::Turn if steps > 0 => self.finish(io, index, Err(CallStatus::TRAP)),
                    Wait::Turn => self.make_ready(index),
                    Wait::Until(at) => self.sleep(at, id),
                    Wait::Room => self.starve(io, index),
                    Wait::Payload => self.expect_payload(io.now(), index),
                    Wait::Host => {}
                }
            }
        }
        steps
    }

    /// Runs an invocation with payload that has just arrived, unless others' turns come first.
    fn run_or_wait(&mut self, io: &mut KernelIo<'_>, index: u32, chunk: &[u8]) {
        let invocation = &mut self.invocations[index as usize];
        if !io.comes_later(invocation.call.client) {
            self.run(io, index, chunk, self.limits.turn_steps);
            return;
        }
        invocation.staged.extend_from_slice(chunk);
        invocation.wait = Wait::Turn;
        self.make_ready(index);
    }

    /// Takes the number of the invocation that runs next, if one may: the one that has waited
    /// longest, of the client that has had least of the card.
    fn next_ready(&mut self, io: &mut KernelIo<'_>) -> Option<u32> {
        if !io.is_shared() {
            return self.ready.pop_front();
        }
        // (One that has ended goes first, and costs nothing.)
        let of = |id: &u32| Some(self.invocations[self.find(*id)? as usize].call.client);
        let had = |(_, client): &(usize, Option<u16>)| client.map(|client| io.had(client));
        let (at, client) = self.ready.iter().map(of).enumerate().min_by_key(had)?;
        let waits = client.is_some_and(|client| io.comes_later(client));
        if waits { None } else { self.ready.remove(at) }
    }

    /// Notes that an invocation waits for room to send, for a limited time; ends it if that time is
    /// over and nothing has come.
    fn starve(&mut self, io: &mut KernelIo<'_>, index: u32) {
        let (now, id) = (io.now(), self.id(index));
        let invocation = &mut self.invocations[index as usize];
        let over = invocation.room_by.take_if(|(end, _)| *end <= now);
        if over.is_some_and(|(_, before)| before == invocation.progress) {
            return self.finish(io, index, Err(CallStatus::CONGESTED));
        }
        if invocation.room_by.is_none() {
            let end = now + self.limits.room_patience;
            invocation.room_by = Some((end, invocation.progress));
            self.sleep(end, id);
        }
        self.starved.push(id);
    }

    /// Notes that an invocation waits for payload, and sets the time of the next check that some
    /// arrives.
    fn expect_payload(&mut self, now: Time, index: u32) {
        let id = self.id(index);
        let invocation = &mut self.invocations[index as usize];
        if invocation.payload_by.is_none() {
            let end = now + self.limits.payload_patience;
            invocation.payload_by = Some((end, invocation.received));
            self.sleep(end, id);
        }
    }

    /// Handles the time `at` that an invocation waited for.
    fn awake(&mut self, io: &mut KernelIo<'_>, at: Time, index: u32) {
        let invocation = &mut self.invocations[index as usize];
        if let Some((_, before)) = invocation.payload_by.take_if(|(end, _)| *end <= at)
            && invocation.wants_payload()
        {
            match invocation.received == before {
                true => self.finish(io, index, Err(CallStatus::LATE)),
                false => self.expect_payload(io.now(), index),
            }
            return;
        }
        if invocation.wait != Wait::Room {
            invocation.room_by.take_if(|(end, _)| *end <= at);
        }
        match invocation.wait {
            Wait::Until(until) if until <= at => self.make_ready(index),
            // One that is about to run may find room. If not, its time is looked at again.
            Wait::Room if !invocation.queued => self.starve(io, index),
            _ => {}
        }
    }

    fn make_ready(&mut self, index: u32) {
        let id = self.id(index);
        let invocation = &mut self.invocations[index as usize];
        if !invocation.queued {
            invocation.queued = true;
            self.ready.push_back(id);
        }
    }

    /// Ends an invocation: its last results and its status go to the requester.
    fn finish(&mut self, io: &mut KernelIo<'_>, index: u32, result: Result<(), CallStatus>) {
        let id = self.id(index);
        let invocation = &mut self.invocations[index as usize];
        let result = result.and_then(|()| invocation.is_whole()).and_then(|()| invocation.fits(0));
        let (status, data) = match result {
            Ok(()) => (CallStatus::OK, invocation.take_rest(&mut self.buffers)),
            Err(status) => {
                invocation.held = None;
                (status, Payload::None)
            }
        };
        let (account, offset) = (invocation.account, invocation.written);
        let parts = (offset > 0).then_some(token(account, id));
        // It ends here, so it hears of no message.
        let token = token(account, NOBODY);
        io.reply(&invocation.call, Reply { status, offset, data, token, parts });
        self.end(index, status != CallStatus::OK);
        while let Some(buffer) = io.take_returned() {
            self.buffers.put(account, buffer);
            self.wake_starved();
        }
    }

    /// Lets invocations that wait for room try again: any kind of room may have become free.
    fn wake_starved(&mut self) {
        for i in 0..self.starved.len() {
            if let Some(index) = self.find(self.starved[i]) {
                self.make_ready(index);
            }
        }
        self.starved.clear();
    }

    /// Frees an invocation's place.
    fn end(&mut self, index: u32, failed: bool) {
        let invocation = &mut self.invocations[index as usize];
        invocation.live = false;
        invocation.generation = invocation.generation.wrapping_add(1);
        // Entries of the old invocation in queues no longer stand for this place.
        invocation.queued = false;
        invocation.drop_out(&mut self.buffers);
        self.buffers.release(core::mem::take(&mut invocation.kept));
        let (host, at) = (invocation.wait == Wait::Host, invocation.program);
        let cell = invocation.cell.take();
        self.free.push(index);
        self.wake_starved();
        if host {
            return;
        }
        if let Some(program) = self.programs[at as usize].as_mut() {
            cell.into_iter().for_each(|cell| program.stop(cell));
            program.running -= 1;
            program.failed += u64::from(failed);
        }
        self.bury(at);
    }

    /// Removes a retired kernel that has no invocations.
    fn bury(&mut self, at: u32) {
        let place = &mut self.programs[at as usize];
        if let Some(program) = place.take_if(|program| program.retired && program.running == 0) {
            self.free_programs.push(at);
            self.set_aside(program.client, program.code);
        }
    }

    /// Handles a call whose op-code has no kernel: the host gets it if it has a fallback.
    fn call_host(
        &mut self,
        now: Time,
        call: &Call,
        (params, data): (&[u8], &[u8]),
        more: u32,
    ) -> Taken {
        // The host that answers is the card's own.
        if !self.host.answers() || call.client != 0 {
            return Taken::NoKernel;
        }
        let Some(index) = self.place(call) else { return Taken::Busy };
        let invocation = &mut self.invocations[index as usize];
        invocation.begin(call, params, more == 0, 0);
        invocation.wait = Wait::Host;
        invocation.staged.extend_from_slice(data);
        if more > 0 {
            self.expect_payload(now, index);
        }
        Taken::Wants(self.id(index))
    }

    /// Tells the host about a call that has arrived completely.
    fn tell_host(&mut self, io: &mut KernelIo<'_>, index: u32) {
        let id = self.id(index);
        if !self.host.has_room() {
            return self.finish(io, index, Err(CallStatus::UNAVAILABLE));
        }
        let invocation = &mut self.invocations[index as usize];
        self.host.tell(FallbackCall {
            id,
            qpn: invocation.call.qpn,
            opcode: invocation.call.opcode,
            max_len: invocation.call.header.max_len,
            params: invocation.params.clone(),
            payload: core::mem::take(&mut invocation.staged),
        });
    }
}

impl remora_nic::kernel::Kernels for Executor {
    fn call(
        &mut self,
        io: &mut KernelIo<'_>,
        call: &Call,
        params: &[u8],
        data: &[u8],
        more: u32,
    ) -> Taken {
        let Some(&at) = self.opcodes.get(&(call.client, call.opcode)) else {
            let taken = self.call_host(io.now(), call, (params, data), more);
            if let (Taken::Wants(id), 0) = (taken, more) {
                self.tell_host(io, id & 0xFFFF);
                return Taken::Done;
            }
            return taken;
        };
        let Some(index) = self.place(call) else { return Taken::Busy };
        let Some(program) = self.programs[at as usize].as_mut() else { return Taken::NoKernel };
        program.calls += 1;
        program.running += 1;
        let budget = program.deployment.budget;
        let invocation = &mut self.invocations[index as usize];
        invocation.begin(call, params, more == 0, budget);
        invocation.program = at;
        let id = self.id(index);
        self.run_or_wait(io, index, data);
        if more > 0 && self.find(id).is_some() { Taken::Wants(id) } else { Taken::Done }
    }

    fn data(
        &mut self,
        io: &mut KernelIo<'_>,
        invocation: u32,
        bytes: &[u8],
        last: bool,
    ) -> Result<(), Busy> {
        // An invocation that has ended ignores the rest of its payload.
        let Some(index) = self.find(invocation) else { return Ok(()) };
        let invocation = &mut self.invocations[index as usize];
        let taken = matches!(invocation.wait, Wait::Host | Wait::Payload);
        if !taken && invocation.staged.len() + bytes.len() > STAGE {
            return Err(Busy);
        }
        invocation.received += bytes.len() as u64;
        if invocation.wait == Wait::Host {
            invocation.ended = last;
            if invocation.staged.len() + bytes.len() > OBJECT_MAX {
                self.finish(io, index, Err(CallStatus::MEMORY));
                return Ok(());
            }
            invocation.staged.extend_from_slice(bytes);
            if last {
                self.tell_host(io, index);
            }
            return Ok(());
        }
        if invocation.wait == Wait::Payload {
            invocation.ended = last;
            self.run_or_wait(io, index, bytes);
            return Ok(());
        }
        invocation.staged.extend_from_slice(bytes);
        invocation.ended = last;
        Ok(())
    }

    fn turn(&mut self, io: &mut KernelIo<'_>) {
        io.counters().kernel_dropped += core::mem::take(&mut self.dropped);
        io.counters().kernel_taps_stopped += core::mem::take(&mut self.stopped);
        while let Some((at, id)) = self.sleeping.take(io.now()) {
            if let Some(index) = self.find(id) {
                self.awake(io, at, index);
            }
        }
        let (mut steps, mut runs) = (self.limits.turn_steps, self.limits.turn_invocations);
        while steps > 0 && runs > 0 {
            runs -= 1;
            let Some(id) = self.next_ready(io) else { break };
            let Some(index) = self.find(id) else { continue };
            self.invocations[index as usize].queued = false;
            steps = self.run(io, index, &[], steps);
        }
    }

    fn due(&self) -> Time {
        if !self.ready.is_empty() || self.stopped > 0 {
            return Time::ZERO;
        }
        self.sleeping.first()
    }

    fn sent(&mut self, token: u64, status: Status, buffer: Option<Buffer>) {
        let (account, id) = ((token >> 32) as u32, token as u32);
        if let Some(buffer) = buffer {
            self.buffers.put(account, buffer);
        }
        if let Some(index) = self.find(id) {
            let invocation = &mut self.invocations[index as usize];
            invocation.has_arrived();
            invocation.broken |= status != Status::Success;
        }
        self.wake_starved();
    }

    fn closed(&mut self, qpn: u32) {
        for index in 0..self.invocations.len() {
            let invocation = &self.invocations[index];
            if invocation.live && invocation.call.qpn == qpn {
                self.dropped += 1;
                self.end(index as u32, true);
            }
        }
        self.buffers.owners.close(qpn);
        self.programs.iter_mut().flatten().for_each(|program| program.closed(qpn));
        for bound in self.taps.iter_mut().flatten() {
            self.stopped += u64::from(bound.closed(qpn));
        }
        self.host.forget(qpn);
    }

    fn receiving(
        &mut self,
        io: &mut KernelIo<'_>,
        tap: u32,
        passing: &Passing,
        bytes: &[u8],
        replaced: &mut Vec<u8>,
    ) -> Verdict {
        let Some(bound) = self.bound(tap) else { return Verdict::Pass };
        let verdict = bound.look(|tap, grants| {
            let mut tap_io = TapIo { io: &mut *io, grants, pd: passing.pd, hint: 0 };
            tap.receiving(&mut tap_io, passing, bytes, replaced)
        });
        io.counters().kernel_taps_stopped += u64::from(bound.has_stopped());
        verdict.unwrap_or(Verdict::Pass)
    }

    fn sending(&mut self, tap: u32, passing: &Passing, bytes: &mut [u8]) {
        if let Some(bound) = self.bound(tap) {
            bound.look(|tap, _| tap.sending(passing, bytes));
            self.stopped += u64::from(bound.has_stopped());
        }
    }
}
