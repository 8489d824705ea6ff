// An identity provider, until it is killed: node provider.mjs ISSUER PORT
//
// The resource that a token is asked for says what it is signed with and for whom it is:
// urn:ALGORITHM:AUDIENCE. `opaque` in place of the algorithm makes it no JWT.

import { generateKeyPairSync } from "node:crypto";
import Provider from "oidc-provider";

const [issuer, port] = process.argv.slice(2);
const ALGORITHMS = {
  RS256: ["rsa", { modulusLength: 2048 }],
  PS256: ["rsa", { modulusLength: 2048 }],
  ES256: ["ec", { namedCurve: "P-256" }],
  EdDSA: ["ed25519", {}],
};
const keys = Object.entries(ALGORITHMS).map(([alg, [kind, options]]) => ({
  ...generateKeyPairSync(kind, options).privateKey.export({ format: "jwk" }),
  kid: alg,
  alg,
  use: "sig",
}));
const provider = new Provider(issuer, {
  jwks: { keys },
  clients: [
    {
      client_id: "nightly",
      client_secret: "made-up-secret",
      grant_types: ["client_credentials"],
      redirect_uris: [],
      response_types: [],
    },
  ],
  ttl: { ClientCredentials: 600 },
  features: {
    clientCredentials: { enabled: true },
    devInteractions: { enabled: false },
    resourceIndicators: {
      enabled: true,
      getResourceServerInfo: (_, resource) => {
        const [, alg, audience] = resource.split(":");
        const opaque = alg === "opaque";
        return {
          scope: "",
          audience,
          accessTokenFormat: opaque ? "opaque" : "jwt",
          jwt: opaque ? undefined : { sign: { alg } },
        };
      },
    },
  },
  extraTokenClaims: () => ({ groups: ["staff", "operator"] }),
});
provider.listen(Number(port), "127.0.0.1", () => console.log("listening"));
