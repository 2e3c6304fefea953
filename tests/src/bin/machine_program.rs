//! A program in a virtual machine, for `tests/tests/machine.rs`: it uses the card of the machine's
//! host, and lets its system panic when it is told to.
//!
//! Its input is lines: `serve`, or `take TICKET`, then the peer of the chain that it has offered,
//! then `crash`. Its own lines begin with `program:`.

use std::error::Error;
use std::fs;
use std::io::stdin;

use remora::message::{Keep, Object};
use remora::nic::Psn;
use remora::offload::chain::offload::{list, table::Value};
use remora::prelude::*;

fn main() -> Result<(), Box<dyn Error>> {
    println!("program: ready");
    let words = line()?;
    let (device, domain, answer): (_, _, &[u8]) = match words.split_once(' ') {
        None => {
            let device = DeviceOptions::new().keep("list", Keep::Forever).open()?;
            let domain = device.alloc_pd()?;
            (device, domain, b"seven")
        }
        Some((_, ticket)) => {
            let options = DeviceOptions::new().take_over(ticket.parse()?, Keep::Forever);
            let device = options.open()?;
            let taken = device.taken();
            let pd = taken.iter().find_map(|object| match object {
                Object::Pd(pd) => Some(*pd),
                _ => None,
            });
            let domain = pd.and_then(|pd| device.adopt_pd(pd)).ok_or("there is no domain")?;
            (device, domain, b"eight")
        }
    };
    let memory = domain.alloc(4096, Access::LOCAL_WRITE | Access::REMOTE_READ)?;
    let value = Value { addr: memory.addr() + 1024, len: answer.len() as u32 };
    memory.write_at(0, &list::nodes(memory.addr(), &[(7, value)]))?;
    memory.write_at(1024, answer)?;
    let chain = domain.load_chain(&list::walking(), &[memory.clone(), memory.clone()])?;
    let Peer { address, qpn, psn } = chain.local().ok_or("the chain serves a client")?;
    let (at, ticket) = (memory.addr(), device.ticket().ok_or("the card is another’s")?);
    println!("program: {address} {qpn} {} {at} {ticket}", psn.value());
    let words = line()?;
    let words: Vec<&str> = words.split_whitespace().collect();
    let [address, qpn, psn] = words[..] else { return Err("no peer".into()) };
    let psn = Psn::new(psn.parse()?);
    chain.serve(Peer { address: address.parse()?, qpn: qpn.parse()?, psn }, device.info().mtu)?;
    println!("program: serves");
    if line()? == "crash" {
        fs::write("/proc/sysrq-trigger", "c")?;
    }
    Ok(())
}

fn line() -> Result<String, Box<dyn Error>> {
    let mut line = String::new();
    stdin().read_line(&mut line)?;
    Ok(line.trim().to_owned())
}
