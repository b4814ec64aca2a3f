#include <mujoco/mujoco.h>

/* Where the quantities beside qpos and qvel come from: derived anew from the new state, without or with contact forces
   (the paper's robots), or left as the integrator left them (robots from MJCF files). */
enum { DERIVED, DERIVED_WITH_CONTACTS, LEFT };
/* The position of a robot of the last kind: qpos[0], the first body, or the centre of mass. */
enum { X, TORSO, MASS };

static void integrate(const mjModel* m, mjData* d, int skip) {
  for (int s = 0; s < skip; s++) {
    mj_forwardSkip(m, d, mjSTAGE_NONE, 1);
    if (m->opt.integrator == mjINT_RK4) mj_RungeKutta(m, d, 4);
    else if (m->opt.integrator == mjINT_EULER) mj_Euler(m, d);
    else mj_implicit(m, d);
  }
}

static void locate(const mjModel* m, const mjData* d, int position, mjtNum* at) {
  mju_zero(at, 3);
  if (position == X) {
    at[0] = d->qpos[0];
  } else if (position == TORSO) {
    mju_copy(at, d->xpos + 3, 3);
  } else {
    mjtNum mass = 0;
    for (int b = 0; b < m->nbody; b++) {
      mju_addToScl3(at, d->xipos + 3 * b, m->body_mass[b]);
      mass += m->body_mass[b];
    }
    mju_scl3(at, at, 1 / mass);
  }
}

/* Move each of `count` robots by one step under its row of `controls`, or, without controls, only derive what follows from
   its state. A row of `states` is qpos, qvel, position, its velocity and the `sizes` numbers of each of the further
   `fields` of d; a row of `warm` is where the constraint solver starts. All robots share the workspace d. */
void corral_step(const mjModel* m, mjData* d, const int* robots, int count, const mjtNum* controls, int source,
                 int position, int skip, mjtNum** fields, const int* sizes, int further, mjtNum* states, int width,
                 mjtNum* warm) {
  mjcb_time = 0;  /* the bindings' clock for MuJoCo's own profile, which nobody reads here: 6% of a step */
  for (int k = 0; k < count; k++) {
    mjtSize i = robots[k];
    mjtNum *qpos = states + i * width, *qvel = qpos + m->nq, *com = qvel + m->nv, *extra = com + 6;
    mju_copy(d->qpos, qpos, m->nq);
    mju_copy(d->qvel, qvel, m->nv);
    mju_copy(d->qacc_warmstart, warm + i * m->nv, m->nv);
    if (controls) {
      mju_copy(d->ctrl, controls + i * m->nu, m->nu);
      integrate(m, d, skip);
      mju_copy(qpos, d->qpos, m->nq);
      mju_copy(qvel, d->qvel, m->nv);
    } else {
      mju_zero(d->ctrl, m->nu);
    }
    if (source == LEFT) {
      mjtNum before[3];
      mju_copy(before, com, 3);
      if (!controls) {  /* a fresh start: no contact forces yet, as Gymnasium's reset leaves them */
        mj_forward(m, d);
        mju_zero(d->cfrc_ext, 6 * m->nbody);
      } else if (further) {
        mj_rnePostConstraint(m, d);
      }
      locate(m, d, position, com);
      mju_sub3(com + 3, com, before);
      mju_scl3(com + 3, com + 3, controls ? 1 / (skip * m->opt.timestep) : 0);
      for (int f = 0; f < further; f++) {
        mju_copy(extra, fields[f], sizes[f]);
        extra += sizes[f];
      }
    } else {
      if (source == DERIVED_WITH_CONTACTS) {
        mj_step1(m, d);
        if (d->ncon) {
          mj_forwardSkip(m, d, mjSTAGE_VEL, 0);
          mju_copy(extra, d->cfrc_ext, 6 * m->nbody);
        } else {
          mju_zero(extra, 6 * m->nbody);
        }
      } else {
        mj_kinematics(m, d);
        mj_comPos(m, d);
        mj_comVel(m, d);
      }
      mj_subtreeVel(m, d);
      mju_copy(com, d->subtree_com + 3, 3);
      mju_copy(com + 3, d->subtree_linvel + 3, 3);
    }
    mju_copy(warm + i * m->nv, d->qacc_warmstart, m->nv);
  }
}
