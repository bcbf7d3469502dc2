//! placeholder
use crate::arguments::ServeArguments;
use crate::fault::Fault;
pub(crate) async fn run(_: ServeArguments) -> Result<(), Fault> {
    Ok(())
}
