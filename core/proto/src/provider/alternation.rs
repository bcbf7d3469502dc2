//! Conversations as providers want them: user and assistant by turns.
//!
//! A turn that was cancelled or could not be carried through leaves its message without an answer. The next one then follows
//! a message of the same role, which many servers refuse.

use crate::session::content::{Block, Content, Message};
use std::borrow::Cow;

/// Puts messages of one role in a row into one, their blocks in order; text becomes a text block. Content that is
/// neither text nor blocks is left as it is.
#[must_use]
pub fn alternating(messages: &[Message]) -> Cow<'_, [Message]> {
    if !messages.windows(2).any(|pair| joins(&pair[0], &pair[1])) {
        return Cow::Borrowed(messages);
    }
    let mut joined: Vec<Message> = Vec::with_capacity(messages.len());
    for message in messages {
        match joined.last_mut() {
            Some(last) if joins(last, message) => {
                let mut blocks = blocks_of(&last.content);
                blocks.extend(blocks_of(&message.content));
                last.content = Content::Blocks(blocks);
            }
            _ => joined.push(message.clone()),
        }
    }
    Cow::Owned(joined)
}

fn joins(first: &Message, second: &Message) -> bool {
    let has_blocks = |message: &Message| !matches!(message.content, Content::Other(_));
    first.role == second.role && has_blocks(first) && has_blocks(second)
}

/// Providers refuse empty text, so it becomes no block.
fn blocks_of(content: &Content) -> Vec<Block> {
    match content {
        Content::Text(text) if !text.is_empty() => vec![Block::of_text(text)],
        content => content.blocks().to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Json;
    use crate::session::content::Role;
    use proptest::prelude::*;

    fn message(role: Role, content: &str) -> Message {
        Message { role, content: Content::read(&Json::parse(content.to_owned()).unwrap()) }
    }

    #[test]
    fn a_message_without_an_answer_is_put_before_the_next_one() {
        let result = r#"{"type":"tool_result","tool_use_id":"t","content":"1"}"#;
        let history = [
            message(Role::User, r#""a""#),
            message(Role::User, r#""""#),
            message(Role::User, &format!("[{result}]")),
            message(Role::Assistant, "[]"),
            message(Role::User, r#""b""#),
        ];
        let joined = alternating(&history);
        let text = format!(r#"[{{"type":"text","text":"a"}},{result}]"#);
        assert_eq!(joined[0].content.to_json().as_str(), text);
        assert_eq!(joined[1..], history[3..]);
    }

    #[test]
    fn content_that_is_no_list_of_blocks_stays_where_it_is() {
        let odd = [message(Role::User, "5"), message(Role::User, r#""x""#)];
        assert_eq!(*alternating(&odd), odd);
    }

    proptest! {
        #[test]
        fn roles_alternate_and_nothing_said_is_lost(
            said in proptest::collection::vec((any::<bool>(), "[a-z]{1,4}"), 0..12)
        ) {
            let role = |user: bool| if user { Role::User } else { Role::Assistant };
            let history: Vec<Message> = said
                .iter()
                .map(|(user, text)| Message { role: role(*user), content: Content::Text(text.clone()) })
                .collect();
            let joined = alternating(&history);
            prop_assert!(joined.windows(2).all(|pair| pair[0].role != pair[1].role));
            let whole = |messages: &[Message]| {
                messages.iter().map(Message::text).collect::<Vec<_>>().join("\n")
            };
            prop_assert_eq!(whole(&joined), whole(&history));
        }
    }
}
